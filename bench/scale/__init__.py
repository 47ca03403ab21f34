"""Costs that grow with the size of a cluster, measured for `docs/scale.md`.

    python -m bench.scale.records      # sizes of records and messages, and the time to make them
    python -m bench.scale.reports      # what an agent's report costs the coordinator
    python -m bench.scale.sessions     # what a session and a watch cost the coordination server
    python -m bench.scale.members      # what the list of agents costs a leader
    python -m bench.scale.meeting      # what a meeting and an exchange cost a member
    python -m bench.scale.listeners    # one member's part of a very large meeting
    python -m bench.scale.serving      # what a request costs the gateway, and what a replica

Each takes `--json` and less than two minutes on a quiet machine. Times of processors, not of the
clock, wherever it is possible: they hardly depend on who else is busy.
"""

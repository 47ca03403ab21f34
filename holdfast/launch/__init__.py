"""Starting and ending the processes of a cluster on this machine.

- `cluster`  what others need of a cluster's folder: `Cluster`, `find`
- `local`    `up`, `down`, `processes`, `start_server`, `start_coordinator`, `start_agent`
- `serving`  a controller and a gateway, where something is served
- `starting` one process: its command, its log, waiting for it
- `ending`   ending all of them, and whatever is left
- `wanted`   whether it is to be up: what `down` has ended stays ended
- `processes` which processes live here
- `joining`  tokens, and a machine that joins with one
- `standby`  a machine whose coordinator may lead too

It knows the processes by their commands (`python -m holdfast.control`, `python -m holdfast.agent`
and so on) and by what they write into `run/`, and decides nothing about jobs.
"""

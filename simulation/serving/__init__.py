"""A small world of one service: replicas, gateways, conductors and users, on simulated time.

`rollout.advance`, what it stands on, and `conductor.memory` are the real code. Around them: nodes
that are read late and written with a check of the term, replicas that load, fail, crash and are
killed, gateways that apply late, conductors that die between deciding and writing, users who ask
for anything at any time.

    python -m simulation.serving --seeds 2000      # look for trouble
    python -m simulation.serving --seed 17         # one seed, its whole story
    python -m simulation.serving --mutants         # break the code on purpose; each must be found
"""

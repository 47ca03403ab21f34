"""A small world of one service: replicas, gateways with their Envoys, controllers, users, requests.

Real: `rollout.advance` and what it stands on, `controller.memory`, and of the gateway `kept`,
`resources` and `steps`. Around them: a coordination plane that is read late and written with a
check of the term, replicas, Envoys that take files late and route requests by them, controllers
that die between deciding and writing, users who ask for anything at any time. `README.md` says
more.

    python -m simulation.serving --seeds 2000 --jobs 2    # look for trouble
    python -m simulation.serving --seed 17                # one seed, its whole story
    python -m simulation.mutants --only gateway           # break the code on purpose
"""

"""`kill -9` at random moments under concurrent writers, and what must hold afterwards.

`python -m tests.proofs.crash --kills 200 --seed S [--tails torn] [--sabotage NAME]`

- `model`     what one writer's part of the tree must look like after any prefix of what it asked
- `writer`    a session that asks in bursts, and compares what it finds after a restart
- `audit`     what all writers share: zxids, sequence numbers, a pair of nodes set by multis
- `tails`     torn tails, by the server's own knowledge of what it had made durable
- `sabotage`  losses made on purpose, to show that the checks see them
- `torture`   rounds of all this
"""

"""The broker's core under faults: a log, groups and transactions in a simulated world.

- `history`   what clients did and saw
- `checker`   which promises a history breaks; `tests/proofs/topics` judges real brokers by it
- `world`     the core with clients, a network, a disk and clocks that a seed decides
- `breakages` the core broken on purpose
"""

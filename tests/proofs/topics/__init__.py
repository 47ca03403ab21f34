"""Topics under kills: writers, transactions, zombies, chains and groups, judged by what they know.

`python -m tests.proofs.topics --kills 200 --seed S [--kafka] [--json]`

- `notes`      the history, noted by many threads
- `clients`    those who write, copy and read, through confluent-kafka
- `forgetful`  the broker as a process on a disk that keeps only what was synced
- `engines`    our broker with its kills and torn tails; three real nodes, one killed at a time
- `campaign`   a run of all this
The checker is `simulation.topics.checker`, which judges the simulated broker, too.
"""

"""Trainings under real agents and coordinators that are killed everywhere: the bits stay the same.

`python -m tests.proofs.training --schedules 30 --seed S`

A cluster of real processes (a coordination server, two coordinators, two agents with zygotes)
trains an MLP, a convnet with batch norm and a transformer with dropout, with AdamW, clipping and a
scheduler: first undisturbed on 1, 2, 3, 4 and 8 workers, then under random schedules of kills,
pauses and resizes. Every result is compared with that of a plain process without a cluster.

- `script`     what is trained
- `trainings`  a training: its job, its reference, its bits
- `schedules`  what is done to it, and at which step; pure, the same for a seed
- `judging`    what must be true of the workers' own logs. Pure
- `cluster`    the cluster, and doing to it what a schedule says
- `campaign`   all of it, and the table
"""

"""A cluster of real processes that is killed everywhere, and what must hold afterwards.

`python -m tests.proofs.control --kills 300 --seed S [--plane ensemble] [--store moto]`

Two coordinators, three agents with a few pretended cores each, a coordination plane and a store;
two jobs of `examples/counter.py` at a time, again and again, until enough was killed. The harness
plays init: it starts servers, coordinators and agents again. Workers are the system's business.

- `faults`      the schedule: what is struck, and when; the same for a seed
- `engines`     the planes and the stores
- `processes`   processes that are kept running, and those that are found by their traces
- `cluster`     all of them together, and striking them
- `watcher`     looks from outside, all the time: znodes, journals, logs, processes
- `events`      what it writes down
- `checks`      what must be true of that: invariants 1 to 7 of the design. Pure
- `breakages`   each check sees what it is for: histories broken on purpose
- `counting`    the job, what it left, and what it should have
- `campaign`    rounds of jobs under faults, then the judgement
"""

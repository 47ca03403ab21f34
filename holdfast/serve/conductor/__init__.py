"""The conductor: the process that advances rollouts. Any number of them run; one leads.

- `main`       options in, an exit code out
- `conductor`  stands for election, and while it leads looks, decides and writes
- `sight`      what the coordination plane says of services, kept fresh by watches
- `memory`     what this conductor has seen of a service over time: counts, load, deaths
- `polling`    asks replicas for their counts
- `writing`    courses and their history, in fenced transactions

What is decided is pure, and stands in `holdfast.serve.rollout`. The course is all that the next
conductor needs; what is in `memory` is lost with this one, and it watches anew.
"""

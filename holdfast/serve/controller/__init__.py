"""The rollout controller: the process that advances rollouts. Any number of them run; one leads.

- `main`        options in, an exit code out
- `controller`  stands for election, and while it leads looks, decides and writes, fenced by its
  term; asks replicas for their counts
- `mirror`      what the coordination plane says of services, kept fresh by watches
- `memory`      what this controller has seen of a service over time: counts, load, deaths

What is decided is pure, and stands in `holdfast.serve.rollout`. The plan is all that the
next controller needs; what is in `memory` is lost with this one, and it watches anew.
"""

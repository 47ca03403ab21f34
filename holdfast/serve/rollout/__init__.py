"""Rollouts, decided: pure functions over frozen values, without I/O, clock or chance.

- `facts`      what is decided from, and what may be decided
- `advance`    the next plan of a service, with a reason
- `verdict`    what speaks against a version
- `autoscale`  how many replicas
- `outlook`    what a service waits for, for people
"""

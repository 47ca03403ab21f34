"""Processes that use a cluster from hosts of their own, and write down what they were told.

- `caller`  asks the gateways at a steady rate
- `prober`  on each gateway's host: which replicas answer from there
- `writer`  appends and sets through the coordination plane

Each line of a record is whole or, if its writer was killed, the last one.
"""

"""The embedded coordination server beside a real ZooKeeper: same machine, same run, same client.

- `command`     the command line; `plan` how much is measured; `report` rows, goals, verdicts
- `contestants` the two servers as processes; `generator` the driver's end of a load generator
- `throughput`, `fanout`, `nodes`, `stalls`  one section each, in the driver
- `load`        the load generator, a process of its own; `clients`, `watchers`, `probes`, `fill`
                are its jobs, over kazoo or over `wire`, a plain socket
"""

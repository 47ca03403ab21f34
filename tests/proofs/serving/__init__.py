"""A service under a steady load while everything behind it is killed, rolled out and rolled back.

- `models`    versions whose answers say which version they are: good, unloadable, worse
- `cluster`   the real processes: a cluster, a controller, a gateway, replicas; and their deaths
- `campaign`  the load, the troubles, and what must be true at the end
- `bad_versions`  each kind of bad version is taken back by itself
- `bodies`    200 MB over HTTP and gRPC (`large`), and what is left of them in `memory`
- `overload`  ten times what can be answered
- `envoys`    what Envoy's own death costs, with one gateway and with two at its address
"""

"""A service under a steady load while everything behind it is killed, rolled out and rolled back.

- `models`    versions whose answers say which version they are: good, unloadable, worse
- `stage`     the real processes: a cluster, a conductor, a gateway, replicas; and their deaths
- `campaign`  the load, the troubles, and what must be true at the end
"""

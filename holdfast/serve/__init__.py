"""Serving: a model's versions behind one address, changed without anybody noticing.

- `records`  a service as its users want it, its course, its replicas and gateways, as values
"""

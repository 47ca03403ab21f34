"""Serving: a model's versions behind one address, changed without anybody noticing.

- `records`     a service as its users want it, its plan, its replicas and gateways, as values
- `services`    what users do with services; `checked` (pure) what may be written down
- `rollout`     the next plan of a service, decided (pure)
- `controller`  the process that carries that out
- `replica`     one process of a service; `protocol` its languages, `cache` its answers of before
- `gateway`     one address for all services
"""

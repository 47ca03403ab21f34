"""A single-node server that speaks the ZooKeeper wire protocol, durable on local disk.

The core decides, the rim does I/O:

- `protocol`   the wire's numbers; `jute` its encoding; `requests` from bytes to operations
- `transactions` what may be written, as values
- `tree`       the state, `apply(transaction, zxid, now_ms) -> Outcome`; no I/O, no clock
- `watches`, `sessions`  who is told, who is alive: plain tables over an explicit time
- `store`      the log, the snapshots and recovery
- `server`     the asyncio rim: sockets, batches, time

A write is logged as the request that asked for it; replaying the log through the same `apply`
gives the same tree. So there is one piece of code for deciding, recovering and simulating.
"""

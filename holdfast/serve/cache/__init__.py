"""Answers that were given before: in the replica's memory, and in a Redis that replicas share.

- `keys`     what makes two requests equal
- `memory`   the newest answers, bounded by entries and bytes
- `packing`  answers as bytes that cannot be mistaken for another's
- `breaker`  when to leave Redis alone
- `shared`   Redis: whatever is wrong with it is a miss
- `telling`  what was counted, for Prometheus
- `results`  both together; equal requests at once are computed once

Only for services that want it (`Service.cache_entries`, `Service.redis`).
"""

"""Answers that were given before: in the replica's memory, and in a Redis that replicas share.

- `results`  the newest answers in memory; equal requests at once are computed once
- `updates`  what `model.updated` says: answers that nobody will ask for are dropped
- `shared`   Redis: whatever is wrong with it is a miss

Only for services that want it (`ServiceSpec.cache_entries`, `ServiceSpec.redis`).
"""

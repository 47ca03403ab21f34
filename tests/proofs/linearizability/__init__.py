"""The linearizability proof: registers under concurrent clients, checked by zxid and real time.

- `history`  what clients asked and were told, and when
- `clients`  threads that read, write and compare-and-set registers over raw connections
- `by_zxid`  the checker: the server's own order must explain every answer, and respect real time
- `search`   a second checker that knows nothing of zxids and tries all orders; for short histories
- `invent`   random histories, good and bad, to hold the two checkers against each other
- `broken`   a proxy that breaks a server's promises on purpose, so that the check is seen to fail
- `run`      servers, kills and the report
"""

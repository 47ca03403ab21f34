"""Every time-out and limit, with its unit last in the name and the reason for its value.

One module, so that a bound is found, questioned and changed in one place.
"""

from __future__ import annotations

from typing import Final

# --- the embedded coordination server -------------------------------------------------------

# ZooKeeper's own tick; clients compute their session time-outs from it.
TICK_MS: Final = 2_000
# A session may ask for no less and no more than this: the same clamp as ZooKeeper's.
SESSION_TIMEOUT_MS_MIN: Final = 2 * TICK_MS
SESSION_TIMEOUT_MS_MAX: Final = 20 * TICK_MS
# `jute.maxbuffer`: a larger frame is refused by ZooKeeper too, so nothing larger can be relied on.
FRAME_BYTES_MAX: Final = 0xFFFFF
# Enough for ten thousand machines on one embedded server; a file descriptor each.
CONNECTIONS_MAX: Final = 20_000
# A socket that has not introduced itself by then is half-open or not a client.
HANDSHAKE_S: Final = 10.0
# About 100 bytes each; a leak of watches in a client must not become one of ours.
WATCHES_PER_CONNECTION_MAX: Final = 100_000
WATCHES_MAX: Final = 2_000_000
# About 600 bytes each: a gigabyte or so. More facts than that belong into another store.
NODES_MAX: Final = 2_000_000
# Requests of one connection that wait for their turn; beyond it we stop reading its socket.
REQUESTS_PER_CONNECTION_MAX: Final = 4_096
# Replies that a client does not read; beyond it the client is closed.
UNSENT_BYTES_MAX: Final = 64 * 1024 * 1024
# Identities that one connection may add by `auth`.
IDENTITIES_MAX: Final = 32
# Operations in one multi; the frame's size bounds it too.
MULTI_OPERATIONS_MAX: Final = 10_000
# Transactions that share one fsync: bounds the delay of the first of them.
BATCH_TRANSACTIONS_MAX: Final = 2_000
# A log segment is closed at this size; a snapshot is made from closed segments.
SEGMENT_BYTES_MAX: Final = 64 * 1024 * 1024
# A snapshot after so many transactions keeps a restart below three seconds.
SNAPSHOT_TRANSACTIONS: Final = 50_000
# The last good one and one before it, with the log between them.
SNAPSHOTS_KEPT: Final = 2

# --- the coordination client ----------------------------------------------------------------

# Long enough for a paused laptop or a Java garbage collection, short enough for a failover.
SESSION_TIMEOUT_S: Final = 10.0
# The first connection: a real ensemble may be electing its leader.
CONNECT_TIMEOUT_S: Final = 15.0
# A leader acts only this part of a session's time after the last answer it had: the rest covers
# the difference between its clock and the ensemble's.
LEASE_FRACTION: Final = 2 / 3

"""Bounds of the embedded coordination server."""

from __future__ import annotations

from typing import Final

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
# TLS handshakes that are not done, at the same time. Each takes some 50 KiB; a thousand machines
# that come back together are through in a few seconds, and those that had to go come again.
HANDSHAKES_MAX: Final = 512
# A connection that was told to end and whose peer does not read the rest is cut after this.
CLOSE_S: Final = 5.0
# How often the server looks for silent sessions and half-open sockets.
SWEEP_S: Final = 0.25
# How often empty containers and outlived TTL nodes are removed.
CONTAINER_SWEEP_S: Final = 5.0
# About 100 bytes each; a leak of watches in a client must not become one of ours.
WATCHES_PER_CONNECTION_MAX: Final = 100_000
WATCHES_MAX: Final = 2_000_000
# About 600 bytes each: a gigabyte or so. More facts than that belong into another store.
NODES_MAX: Final = 2_000_000
# Access control lists that nodes share instead of holding a copy each; then sharing starts anew.
# Lists above the size are not shared, so that the table stays below four megabytes.
ACLS_SHARED_MAX: Final = 4_096
ACL_SHARED_BYTES_MAX: Final = 1_024
# Requests of one connection that wait for their turn; beyond it we stop reading its socket.
REQUESTS_PER_CONNECTION_MAX: Final = 4_096
# The same in bytes: a client's requests may be a megabyte each.
REQUEST_BYTES_PER_CONNECTION_MAX: Final = 16 * 1024 * 1024
# Frames of one client before the others have their turn: about three milliseconds.
FRAMES_PER_TURN_MAX: Final = 256
# Replies that a client does not read: from here on we stop reading its requests.
UNSENT_BYTES_SLOW: Final = 1024 * 1024
# Replies and events that a client does not read; beyond it the client is closed.
UNSENT_BYTES_MAX: Final = 64 * 1024 * 1024
# Identities that one connection may add by `auth`.
IDENTITIES_MAX: Final = 32
# Operations in one multi; the frame's size bounds it too.
MULTI_OPERATIONS_MAX: Final = 10_000
# What shares one fsync and is applied in one turn of the loop: about ten milliseconds.
BATCH_TRANSACTIONS_MAX: Final = 500
# A batch that takes longer than this is a disk in trouble; pings are then answered out of turn.
DISK_STALL_S: Final = 0.25
# A log segment is closed at this size; a snapshot is made from closed segments.
SEGMENT_BYTES_MAX: Final = 64 * 1024 * 1024
# Zeros written ahead of the log's end: an append that does not change the file's size needs no
# journal commit of the file system, and its fsync is about half as long.
LOG_AHEAD_BYTES: Final = 256 * 1024
# A snapshot after so many transactions keeps a restart below three seconds.
SNAPSHOT_TRANSACTIONS: Final = 50_000
# The last good one and one before it, with the log between them.
SNAPSHOTS_KEPT: Final = 2
# Without room for a new segment the old one goes on; asking more often would not make room.
ROLL_RETRY_S: Final = 5.0
# Old files are removed within milliseconds, and a start waits for it; recovery may take seconds,
# and the removal of old files waits for that.
TRIMMING_S: Final = 30.0

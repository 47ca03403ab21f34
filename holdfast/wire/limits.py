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
# A snapshot process whose server died ends within milliseconds; a new server waits no longer.
COMPACTOR_END_S: Final = 5.0

# --- the coordination client ----------------------------------------------------------------

# Long enough for a paused laptop or a Java garbage collection, short enough for a failover.
SESSION_TIMEOUT_S: Final = 10.0
# The first connection: a real ensemble may be electing its leader.
CONNECT_TIMEOUT_S: Final = 15.0
# A leader acts only this part of a session's time after the last answer it had: the rest covers
# the difference between its clock and the ensemble's.
LEASE_FRACTION: Final = 2 / 3

# --- the doctor -----------------------------------------------------------------------------

# All checks together, so that the command ends within three seconds: longer, and nobody runs it
# before asking for help.
DOCTOR_S: Final = 2.4
# Measuring fsync: enough for a median on a slow disk, a fraction of the whole.
DOCTOR_FSYNC_S: Final = 0.4
DOCTOR_FSYNC_SAMPLES_MAX: Final = 25
# A write waits for one fsync. Above this a disk is spinning, remote, or throttled.
FSYNC_MS_WARN: Final = 10.0
# Room for the log and two snapshots of a full tree; below the minimum writes soon stop.
DISK_FREE_BYTES_WARN: Final = 5 * 1024**3
DISK_FREE_BYTES_MIN: Final = 256 * 1024**2
# A connection takes one file; fewer than this, and a small cluster meets the limit.
OPEN_FILES_WARN: Final = 4_096
# Wall clock against monotonic clock over a short sleep: more is a clock being moved.
CLOCK_SKEW_MS_WARN: Final = 20.0
# One call to the coordination plane: an ensemble that loses its leader answers again within this.
OPERATION_TIMEOUT_S: Final = 20.0
# A caller that waits for less, or not at all, still gives each request this long to be answered.
OPERATION_GRACE_S: Final = 5.0
# The keeper asks for a sign of life so often, as a part of the session's time.
KEEPER_FRACTION: Final = 1 / 10
# A server that has not answered the keeper by then is given up, and another one is tried.
HANG_UP_FRACTION: Final = 1 / 3
# Between two attempts to connect: the first is soon, the last still below a session's time.
RECONNECT_DELAY_S: Final = 0.05
RECONNECT_DELAY_S_MAX: Final = 1.0
# The embedded server, from its start to its first answer; recovery of a large folder takes seconds.
SERVER_START_S: Final = 30.0
# An embedded server that nobody uses ends after this; long enough for a script's next run.
LINGER_S: Final = 30.0
# One attempt to see why a server cannot be reached.
DIAGNOSE_S: Final = 1.0
# A value in the coordination plane: half a frame, since a transaction may carry it with others.
VALUE_BYTES_MAX: Final = 512 * 1024
# An item of a queue is written again with each delivery; larger things belong into a blob.
QUEUE_ITEM_BYTES_MAX: Final = 64 * 1024
# All names of a queue's items come in one frame, 44 bytes each.
QUEUE_CAPACITY_MAX: Final = 10_000
# Marks of the last writes, kept beside a value: a writer whose reply was lost finds its own.
STAMPS_KEPT: Final = 64
# A compare-and-set that somebody else always wins is a design error, not bad luck.
UPDATE_TRIES_MAX: Final = 200
# Nodes that a waiter could not remove because the server was away; removed when it is back.
CHORES_MAX: Final = 10_000
# Changes of a session's state that a slow listener has not seen yet.
STATE_CHANGES_MAX: Final = 1_000
# A thread of ours that is asked to end looks up at once; this bounds a stuck callback of a user.
THREAD_END_S: Final = 5.0
# Characters of a name that becomes part of a node's name.
NAME_CHARACTERS_MAX: Final = 200

# --- listings -------------------------------------------------------------------------------

# A tree on a terminal: beyond it nobody reads, and each node costs a round trip.
LISTED_NODES_MAX: Final = 10_000
# How much of a node's data a listing shows.
SHOWN_DATA_BYTES_MAX: Final = 80

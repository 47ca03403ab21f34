"""Bounds of the coordination client and its recipes."""

from __future__ import annotations

from typing import Final

# Long enough for a paused laptop or a Java garbage collection, short enough for a failover.
SESSION_TIMEOUT_S: Final = 10.0
# The first connection: a real ensemble may be electing its leader.
CONNECT_TIMEOUT_S: Final = 15.0
# A leader acts only this part of a session's time after the last answer it had: the rest covers
# the difference between its clock and the ensemble's.
LEASE_FRACTION: Final = 2 / 3
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

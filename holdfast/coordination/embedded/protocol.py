"""The numbers of the ZooKeeper wire protocol, by name. Nothing here decides anything."""

from __future__ import annotations

from typing import Final

from holdfast.wire.errors import TerminalError

# Operations: the `type` of a request header.
CREATE: Final = 1
DELETE: Final = 2
EXISTS: Final = 3
GET_DATA: Final = 4
SET_DATA: Final = 5
GET_ACL: Final = 6
SET_ACL: Final = 7
GET_CHILDREN: Final = 8
SYNC: Final = 9
PING: Final = 11
GET_CHILDREN2: Final = 12
CHECK: Final = 13
MULTI: Final = 14
CREATE2: Final = 15
RECONFIG: Final = 16
CHECK_WATCHES: Final = 17
REMOVE_WATCHES: Final = 18
CREATE_CONTAINER: Final = 19
DELETE_CONTAINER: Final = 20
CREATE_TTL: Final = 21
MULTI_READ: Final = 22
AUTH: Final = 100
SET_WATCHES: Final = 101
SASL: Final = 102
GET_EPHEMERALS: Final = 103
GET_ALL_CHILDREN_NUMBER: Final = 104
SET_WATCHES2: Final = 105
ADD_WATCH: Final = 106
WHO_AM_I: Final = 107
CREATE_SESSION: Final = -10
CLOSE_SESSION: Final = -11
ERROR_RESULT: Final = -1

# Reserved transaction numbers of a connection.
XID_WATCH_EVENT: Final = -1
XID_PING: Final = -2
XID_AUTH: Final = -4
XID_SET_WATCHES: Final = -8

# Error codes.
OK: Final = 0
SYSTEM_ERROR: Final = -1
RUNTIME_INCONSISTENCY: Final = -2
MARSHALLING_ERROR: Final = -5
UNIMPLEMENTED: Final = -6
BAD_ARGUMENTS: Final = -8
NO_NODE: Final = -101
NO_AUTH: Final = -102
BAD_VERSION: Final = -103
NO_CHILDREN_FOR_EPHEMERALS: Final = -108
NODE_EXISTS: Final = -110
NOT_EMPTY: Final = -111
SESSION_EXPIRED: Final = -112
INVALID_ACL: Final = -114
AUTH_FAILED: Final = -115
SESSION_MOVED: Final = -118
NO_WATCHER: Final = -121
RECONFIG_DISABLED: Final = -123
QUOTA_EXCEEDED: Final = -125
THROTTLED: Final = -127

# Watch events.
EVENT_NONE: Final = -1
EVENT_CREATED: Final = 1
EVENT_DELETED: Final = 2
EVENT_DATA_CHANGED: Final = 3
EVENT_CHILDREN_CHANGED: Final = 4
STATE_SYNC_CONNECTED: Final = 3

# Permissions of an ACL entry.
PERM_READ: Final = 1
PERM_WRITE: Final = 2
PERM_CREATE: Final = 4
PERM_DELETE: Final = 8
PERM_ADMIN: Final = 16
PERM_ALL: Final = 31

# Flags of a create.
FLAG_PERSISTENT: Final = 0
FLAG_EPHEMERAL: Final = 1
FLAG_SEQUENTIAL: Final = 2
FLAG_EPHEMERAL_SEQUENTIAL: Final = 3
FLAG_CONTAINER: Final = 4
FLAG_TTL: Final = 5
FLAG_TTL_SEQUENTIAL: Final = 6
CREATE_FLAGS: Final = range(7)
# Not on the wire: a createContainer whose flags say sequential, and flags that nobody knows.
FLAG_CONTAINER_SEQUENTIAL: Final = 7
FLAG_UNKNOWN: Final = -1

# Modes of addWatch.
WATCH_PERSISTENT: Final = 0
WATCH_PERSISTENT_RECURSIVE: Final = 1

# Kinds of removeWatches and checkWatches.
WATCHER_CHILDREN: Final = 1
WATCHER_DATA: Final = 2
WATCHER_ANY: Final = 3


class OperationError(TerminalError):
    """An operation is refused; `code` is the protocol's, and goes into the reply.

    Never leaves this package: the server turns it into an answer.
    """

    def __init__(self, code: int) -> None:
        super().__init__(f"the operation is refused with code {code}")
        self.code = code

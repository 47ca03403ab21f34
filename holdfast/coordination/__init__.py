"""The coordination plane: facts that everyone must agree on, over kazoo.

`connect(address)` gives a session; the recipes above it speak in domain verbs. Nothing outside
this package makes a raw znode call. It may import `holdfast.wire` only.

- `session`, `lease`   the states of a session, its lease, its keeper; `launch` the embedded server
- `nodes`             kazoo's operations, called by nobody else: bounded, lost replies found;
                      what a fresh read is sent behind
- `contenders`        first come, first served: under `election`, with its loop, and `locks`
- `shared`            where what the workers of a queue share lies, and who holds it
- `barriers`, `membership`, `config`, `queue`  the other recipes
- `facts`             versioned facts of a domain with a layout of its own
- `mirror`            a typed copy of a part of the plane, kept true by watches
"""

from holdfast.coordination.barriers import Barrier, DoubleBarrier
from holdfast.coordination.config import ABSENT, Config, Versioned
from holdfast.coordination.contenders import Contender
from holdfast.coordination.election import Election, ElectionLoop, Leader, Leadership
from holdfast.coordination.facts import Fact, Facts
from holdfast.coordination.follow import Follow
from holdfast.coordination.locks import AcquiredLock, Lock, Semaphore, SharedLock
from holdfast.coordination.membership import Member, MemberInfo, Membership
from holdfast.coordination.mirror import Mirror, Mirrored, document, single
from holdfast.coordination.queue import Item, Queue
from holdfast.coordination.session import Session, connect
from holdfast.coordination.states import SessionState
from holdfast.coordination.transaction import Transaction

__all__ = [
    "ABSENT",
    "AcquiredLock",
    "Barrier",
    "Config",
    "Contender",
    "DoubleBarrier",
    "Election",
    "ElectionLoop",
    "Fact",
    "Facts",
    "Follow",
    "Item",
    "Leader",
    "Leadership",
    "Lock",
    "Member",
    "MemberInfo",
    "Membership",
    "Mirror",
    "Mirrored",
    "Queue",
    "Semaphore",
    "Session",
    "SessionState",
    "SharedLock",
    "Transaction",
    "Versioned",
    "connect",
    "document",
    "single",
]

"""The coordination plane: facts that everyone must agree on, over kazoo.

`connect(address)` gives a session; the recipes above it speak in domain verbs. Nothing outside
this package makes a raw znode call. It may import `holdfast.wire` only.

- `session`, `life`   the states of a session, its lease, its keeper; `launch` the embedded server
- `nodes`             kazoo's operations, called by nobody else: bounded, lost replies found
- `fences`            what a fresh read is sent behind: the one place that knows how fresh it is
- `line`              a queue of contenders, under `election` and `locks`
- `shared`            where what the workers of a queue share lies, and who holds it
- `barriers`, `membership`, `config`, `queue`  the other recipes
- `facts`             versioned facts of a domain with a layout of its own
- `mirror`            a typed copy of a part of the plane, kept true by watches
- `standing`          a candidate's life: campaign, lead, stand again
"""

from holdfast.coordination.barriers import Barrier, DoubleBarrier
from holdfast.coordination.config import ABSENT, Config, Versioned
from holdfast.coordination.election import Election, Leader, Leadership
from holdfast.coordination.facts import Fact, Facts
from holdfast.coordination.follow import Follow
from holdfast.coordination.line import Contender
from holdfast.coordination.locks import Held, Lock, Semaphore, SharedLock
from holdfast.coordination.membership import Member, MemberInfo, Membership
from holdfast.coordination.mirror import Mirror, Mirrored, document, single
from holdfast.coordination.queue import Item, Queue
from holdfast.coordination.session import Session, connect
from holdfast.coordination.standing import Standing
from holdfast.coordination.states import State
from holdfast.coordination.transaction import Transaction

__all__ = [
    "ABSENT",
    "Barrier",
    "Config",
    "Contender",
    "DoubleBarrier",
    "Election",
    "Fact",
    "Facts",
    "Follow",
    "Held",
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
    "SharedLock",
    "Standing",
    "State",
    "Transaction",
    "Versioned",
    "connect",
    "document",
    "single",
]

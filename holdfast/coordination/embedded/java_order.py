"""The order in which Java's hash tables give what they hold.

ZooKeeper deletes the ephemerals of a session in such an order, so clients see the events in it,
and expands `auth` in such an order. We keep to it, so that a client sees the same from both.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from holdfast.coordination.embedded.transactions import AuthIdentity

SLOTS_AT_FIRST: Final = 16


def string_hash(text: str) -> int:
    """`String.hashCode`, as an unsigned number."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return value


def _spread(value: int) -> int:
    """A hash with its upper half mixed in: only the lower bits choose a slot."""
    return value ^ value >> 16


def grown(slots: int, count: int) -> int:
    """The slots of a set that had `slots` and now holds `count`: they double, and never shrink."""
    while 4 * count > 3 * slots:
        slots *= 2
    return slots


def copy_order(texts: Iterable[str], slots: int) -> list[str]:
    """How a copy of the set gives its strings, which were added in this order to `slots` slots.

    A copy is made just large enough; strings that share a slot of it stand as they stood in the
    original.
    """
    hashed = [(_spread(string_hash(text)), text) for text in texts]
    needed = int(len(hashed) / 0.75 + 1.0)
    capacity = 1
    while capacity < needed:
        capacity *= 2
    hashed.sort(key=lambda pair: (pair[0] & (capacity - 1), pair[0] & (slots - 1)))
    return [text for _, text in hashed]


def identity_order(identities: Iterable[AuthIdentity]) -> list[AuthIdentity]:
    """How ZooKeeper lists the identities of a connection: a concurrent hash map's order."""
    known = list(identities)
    slots = SLOTS_AT_FIRST
    while 4 * len(known) >= 3 * slots:
        slots *= 2

    def slot(identity: AuthIdentity) -> int:
        value = 37 * (37 * 17 + string_hash(identity.scheme)) + string_hash(identity.id)
        return _spread(value & 0xFFFFFFFF) & (slots - 1)

    return sorted(known, key=slot)

"""Orders that were sent and whose effect no report has shown yet. Pure: the time is an argument.

`reconcile` gives an order again and again until it is done. It is sent once, and again when it
says something else, when the agent has a new connection, or when it is late: then it may be lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from holdfast.system import backoff
from holdfast.wire.orders import Order

# An order whose effect no report shows may be lost: sent again after this, then ever more rarely.
ORDER_AGAIN_S: Final = 1.0
ORDER_AGAIN_S_MAX: Final = 30.0

Key = tuple[type[Order], str, str, int]


@dataclass(frozen=True, slots=True)
class _Sent:
    order: Order
    connection: int
    again_s: float
    times: int  # in a row


class Outstanding:
    """What was sent in this term. It holds no more than the last tick's orders."""

    def __init__(self) -> None:
        self._sent: dict[Key, _Sent] = {}

    def __len__(self) -> int:
        return len(self._sent)

    def keep(self, orders: Iterable[Order]) -> None:
        """Forget all but these: the others are done, or not wanted any more."""
        wanted = {_key(order) for order in orders}
        self._sent = {key: sent for key, sent in self._sent.items() if key in wanted}

    def is_new(self, order: Order) -> bool:
        """Whether it says something that was not said before."""
        sent = self._sent.get(_key(order))
        return sent is None or sent.order != order

    def is_due(self, order: Order, connection: int, now_s: float) -> bool:
        """Whether to send it now."""
        sent = self._sent.get(_key(order))
        if sent is None or sent.order != order:
            return True
        return sent.connection != connection or now_s >= sent.again_s

    def sent(self, order: Order, connection: int, now_s: float) -> None:
        """It was sent on this connection; each time in a row it is given longer."""
        before = self._sent.get(_key(order))
        times = 1
        if before is not None and (before.order, before.connection) == (order, connection):
            times = before.times + 1
        pause_s = backoff.pause_s(times, ORDER_AGAIN_S, ORDER_AGAIN_S_MAX)
        self._sent[_key(order)] = _Sent(order, connection, now_s + pause_s, times)


def _key(order: Order) -> Key:
    return type(order), order.node, order.job, order.worker

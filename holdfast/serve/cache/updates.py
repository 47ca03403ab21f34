"""What `model.updated` tells a cache of answers: which of them nobody will ask for any more.

Answers are kept by the publication that gave them, so none is ever wrong. But memory is the
model's: those of a version that is gone make room at once, and not only when others push them out.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.events.records import ALIAS_MOVED, ALIAS_REMOVED, MODEL_UPDATED_TOPIC, RETIRED
from holdfast.system import logs
from holdfast.system.tasks import OwnedThread, start_thread
from holdfast.wire.errors import HoldfastError
from holdfast.wire.limits import THREAD_END_S

if TYPE_CHECKING:
    from holdfast.topics import Record

log = logs.get(__name__)


class ModelUpdate(msgspec.Struct, frozen=True, rename={"before": "from", "after": "to"}):
    """A record of `model.updated`, as far as it matters here."""

    model: str
    change: str
    version: int = 0
    before: int = 0
    after: int = 0

    def unasked_for(self, held: Collection[int]) -> tuple[int, ...]:
        """The versions whose answers may go. One that is loaded here is asked for, whatever aliases
        say: a rollout takes its time."""
        if self.change == RETIRED:
            return (self.version,)
        gone = self.before if self.change in (ALIAS_MOVED, ALIAS_REMOVED) else 0
        return (gone,) if gone and gone not in held else ()


_decode: Final = msgspec.json.Decoder(ModelUpdate).decode


class ModelUpdates:
    """Follows the updates of one model on a thread of its own, and calls `heard` in the loop.
    Whoever makes it closes it. A cache can do without: what is wrong here is logged."""

    def __init__(self, address: str, model: str, heard: Callable[[ModelUpdate], None]) -> None:
        self.model = model
        self._address = address
        self._heard = heard
        self._loop = asyncio.get_running_loop()
        self._ended = threading.Event()
        self._thread: OwnedThread = start_thread(self._run, "model-updates")

    async def close(self) -> None:
        self._ended.set()
        await asyncio.to_thread(self._thread.join, THREAD_END_S)

    def _run(self) -> None:
        from holdfast.topics import connect  # noqa: PLC0415 - few replicas need it

        try:
            with connect(self._address) as cluster:
                cluster.subscribe(MODEL_UPDATED_TOPIC, self._take)
                self._ended.wait()
        except HoldfastError as error:
            log.warning("updates of models are not followed", reason=str(error))

    def _take(self, record: Record) -> None:
        try:
            update = _decode(record.value or b"")
        except msgspec.MsgspecError as error:
            log.warning("a record is no update of a model", at=record.offset, reason=str(error))
            return
        if update.model == self.model and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._heard, update)

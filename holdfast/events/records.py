"""What is told on `holdfast.events` and `model.updated`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from holdfast.models import records as models
from holdfast.wire.history import ASKED, HistoryEntry

EVENTS_TOPIC: Final = "holdfast.events"
MODEL_UPDATED_TOPIC: Final = "model.updated"

JOB: Final = "job"
SERVICE: Final = "service"
MODEL: Final = "model"
CLUSTER: Final = "cluster"

DECIDED: Final = "decided"
ASKED_FOR: Final = "asked"
GAP: Final = "gap"
REMOVED: Final = "removed"
PHASE: Final = "phase"
COMMITTED: Final = "checkpoint.committed"
PLANNED: Final = "rollout"
PUBLISHED: Final = "published"
ALIAS_MOVED: Final = "alias.moved"
ALIAS_REMOVED: Final = "alias.removed"
RETIRED: Final = "retired"

# What an entry of a history is told as; any other is a decision.
_KINDS: Final[Mapping[str, Mapping[str, str]]] = {
    JOB: {"SetStatus": PHASE, "CommitCheckpoint": COMMITTED},
    SERVICE: {},
    MODEL: {
        models.PUBLISHED: PUBLISHED,
        models.ALIAS_MOVED: ALIAS_MOVED,
        models.ALIAS_REMOVED: ALIAS_REMOVED,
        models.RETIRED: RETIRED,
    },
    CLUSTER: {"Removed": REMOVED},
}


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that happened.

    `id` is the same however often it is told. `zxid` grows from event to event; those of one
    transaction share it, and are told in the order in which they were decided. `of` says whose it
    is (job, service, model), `name` which. `number` counts the events of a history, so that a
    missing one shows. `reason` is a sentence for people, `data` what programs want to know.
    """

    id: str
    zxid: int
    kind: str
    of: str
    name: str
    at_s: float = 0.0
    term: int = 0
    number: int = 0
    what: str = ""
    reason: str = ""
    data: dict[str, str | int] = {}


_encoder: Final = msgspec.json.Encoder()
_decode: Final = msgspec.json.Decoder(Event).decode


def encode(event: Event) -> bytes:
    return _encoder.encode(event)


def decode(data: bytes) -> Event:
    """A field more, of a newer version, is passed over."""
    return _decode(data)


def kind_of(of: str, entry: HistoryEntry) -> str:
    if entry.what == ASKED:
        return ASKED_FOR
    if of == SERVICE and "plan" in entry.data:
        return PLANNED
    return _KINDS[of].get(entry.what, DECIDED)


def model_updated(event: Event) -> dict[str, Any] | None:
    """What is told on `model.updated`; None: the event is of something else.

    A gap in what is known of a model is told there too: whoever caches drops all that it has of it.
    """
    if event.of != MODEL:
        return None
    told = {"id": event.id, "zxid": event.zxid, "model": event.name, "change": event.kind}
    return {**told, "at_s": event.at_s, **event.data}

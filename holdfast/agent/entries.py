"""Journal entries as JSON values, in both directions. An entry of a kind that is not known is
refused; a field that is not known is passed over, since a newer agent may have written it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from holdfast.agent.events import (
    Accepted,
    Entry,
    Exited,
    Forgotten,
    Held,
    Identity,
    Key,
    Moved,
    Slots,
    Started,
    Stopping,
    TermSeen,
)
from holdfast.wire.documents import known_fields, plain_of, read
from holdfast.wire.errors import Corrupt
from holdfast.wire.orders import StartWorker
from holdfast.wire.probes import Probe
from holdfast.wire.reports import Exit, ExitKind
from holdfast.wire.room import Resources


def encode(entry: Entry) -> dict[str, Any]:
    """The entry as plain values; `kind` says which it is."""
    match entry:
        case TermSeen(term):
            return {"kind": "term", "term": term}
        case Accepted(order, slots):
            # Values of secrets stay in memory: a journal outlives the worker, and is copied.
            order = replace(order, secrets={})
            return {"kind": "accepted", "order": plain_of(order), "slots": slots._asdict()}
        case Started(key, identity):
            return {"kind": "started", "key": list(key), "identity": list(identity)}
        case Held(key, view, step, ready, linked):
            how = {"ready": ready, "linked": linked}
            return {"kind": "held", "key": list(key), "view": view, "step": step, **how}
        case Moved(key, slots):
            return {"kind": "moved", "key": list(key), "slots": slots._asdict()}
        case Stopping(key, kill_at_s, hung, frozen, unwell, disk_bytes):
            why = {"hung": hung, "frozen": frozen, "unwell": unwell, "disk_bytes": disk_bytes}
            return {"kind": "stopping", "key": list(key), "kill_at_s": kill_at_s, **why}
        case Exited(key, end):
            ended = {"exit": end.kind.value, "detail": end.detail}
            return {"kind": "exited", "key": list(key), **ended}
        case Forgotten(key):
            return {"kind": "forgotten", "key": list(key)}


def decode(record: Mapping[str, Any]) -> Entry:
    """The entry that `encode` was given."""
    try:
        return _DECODERS[record["kind"]](record)
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt(
            f"the journal holds an entry that is not one: {dict(record)!r:.200}",
            why=f"{type(error).__name__}: {error}",
            fix="use the version of holdfast that wrote it",
        ) from error


def _key(record: Mapping[str, Any]) -> Key:
    job, worker, *_ = record["key"]
    return Key(job, worker)


def _identity(record: Mapping[str, Any]) -> Identity:
    pid, start_ticks, boot, *_ = record["identity"]
    return Identity(pid, start_ticks, boot)


def _accepted(record: Mapping[str, Any]) -> Accepted:
    fields = known_fields(StartWorker, record["order"])
    fields["resources"] = Resources(**known_fields(Resources, fields["resources"]))
    fields["command"] = tuple(fields["command"])
    fields["requirements"] = tuple(fields.get("requirements", ()))  # an older journal has none
    for name in ("ready", "live"):  # an older journal has neither
        fields[name] = read("the journal", Probe | None, fields.get(name))
    return Accepted(StartWorker(**fields), _slots(record))


def _slots(record: Mapping[str, Any]) -> Slots:
    held = known_fields(Slots, record["slots"])
    return Slots(**{name: tuple(values) for name, values in held.items()})


def _stopping(record: Mapping[str, Any]) -> Stopping:
    # An older journal has the first of them alone.
    why = (record["hung"], record.get("frozen", False), record.get("unwell", ""))
    return Stopping(_key(record), record["kill_at_s"], *why, record.get("disk_bytes", 0))


def _held(record: Mapping[str, Any]) -> Held:
    # In an older journal whoever is here was ready, and had said so itself.
    how = (record.get("ready", True), record.get("linked", True))
    return Held(_key(record), record["view"], record["step"], *how)


_DECODERS: Final[Mapping[str, Callable[[Mapping[str, Any]], Entry]]] = {
    "term": lambda record: TermSeen(record["term"]),
    "accepted": _accepted,
    "started": lambda record: Started(_key(record), _identity(record)),
    "held": _held,
    "moved": lambda record: Moved(_key(record), _slots(record)),
    "stopping": _stopping,
    "exited": lambda record: Exited(_key(record), Exit(ExitKind(record["exit"]), record["detail"])),
    "forgotten": lambda record: Forgotten(_key(record)),
}

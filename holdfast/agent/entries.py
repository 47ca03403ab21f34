"""Journal entries as JSON values, in both directions: their fields by their names, as everywhere
(`wire.values`), and `kind`. With the standard library alone, since the simulator runs it on PyPy.

A newer agent may have written the journal: a field that is not known is passed over, and an entry
of a kind that is not known is none (the journal keeps it). An older one may have: a field that is
missing has its default.
"""

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
from holdfast.wire.errors import Corrupt
from holdfast.wire.orders import StartWorker
from holdfast.wire.plain import known_fields, plain_of
from holdfast.wire.probes import Probe, ProbeKind
from holdfast.wire.reports import Exit, ExitKind
from holdfast.wire.room import Resources

_KINDS: Final[Mapping[str, Callable[..., Entry]]] = {
    "term": TermSeen,
    "accepted": Accepted,
    "started": Started,
    "held": Held,
    "moved": Moved,
    "stopping": Stopping,
    "exited": Exited,
    "forgotten": Forgotten,
}
_NAMES: Final = {kind: name for name, kind in _KINDS.items()}


def encode(entry: Entry) -> dict[str, Any]:
    """The entry as plain values; `kind` says which it is."""
    if isinstance(entry, Accepted):
        # Values of secrets stay in memory: a journal outlives the worker, and is copied.
        entry = replace(entry, order=replace(entry.order, secrets={}))
    plain = {"kind": _NAMES[type(entry)], **plain_of(entry)}
    if isinstance(entry, Accepted | Moved):
        plain["slots"] = entry.slots._asdict()
    if isinstance(entry, Exited):
        plain |= {"exit": entry.exit.kind.value, "detail": entry.exit.detail}
    return plain


def decode(record: Mapping[str, Any]) -> Entry | None:
    """The entry that `encode` was given; None: it is of a kind that this version does not know."""
    try:
        make = _KINDS.get(record["kind"])
        if make is None:
            return None
        plain = known_fields(make, record)  # type: ignore[arg-type]
        for name, read in _READERS.items():
            if name in plain:
                plain[name] = read(plain[name])
        if make is Exited:
            plain["exit"] = Exit(ExitKind(record["exit"]), record["detail"])
        return make(**plain)
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt(
            f"the journal holds an entry that is not one: {dict(record)!r:.200}",
            why=f"{type(error).__name__}: {error}",
            fix="use the version of holdfast that wrote it",
        ) from error


def _order(plain: Mapping[str, Any]) -> StartWorker:
    held = known_fields(StartWorker, plain)
    held["resources"] = Resources(**known_fields(Resources, held["resources"]))
    for name in ("command", "requirements"):  # an older journal has not the second
        held[name] = tuple(held.get(name, ()))
    for name in ("ready", "live"):  # an older journal has neither
        held[name] = _probe(held.get(name))
    return StartWorker(**held)


def _probe(plain: Mapping[str, Any] | None) -> Probe | None:
    if plain is None:
        return None
    held = known_fields(Probe, plain)
    command = tuple(held.get("command", ()))
    return Probe(**held | {"kind": ProbeKind(held["kind"]), "command": command})


def _slots(plain: Mapping[str, Any]) -> Slots:
    return Slots(**{name: tuple(held) for name, held in known_fields(Slots, plain).items()})


_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "key": lambda row: Key(*row[:2]),
    "identity": lambda row: Identity(*row[:3]),
    "order": _order,
    "slots": _slots,
}

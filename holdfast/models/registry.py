"""The registry: publishing versions, moving aliases, retiring.

    registry = Registry(session, blobs, "anna@host")
    version = registry.publish(VersionDraft("digits", Kind.TORCH, signature, files, ...))
    registry.set_alias("digits", "prod", version.number, expect=2, why="better on the test set")

Every change of a model is one transaction over its own node: so all changes of a model come one
after the other, and whoever watches that node misses none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from holdfast.coordination import Session, Transaction
from holdfast.models import drafts, records
from holdfast.models.catalogue import Catalogue, read_model
from holdfast.models.drafts import VersionDraft
from holdfast.models.records import (
    Alias,
    AliasMove,
    Model,
    Publication,
    Version,
    check_alias,
    check_model,
)
from holdfast.storage import Blobs, bundles, put_part
from holdfast.system import logs
from holdfast.wire.documents import from_bytes, to_bytes
from holdfast.wire.errors import Conflict, Full, Missing, Refused, Usage
from holdfast.wire.history import HistoryEntry
from holdfast.wire.limits import UPDATE_TRIES_MAX
from holdfast.wire.reports import Part

# Moves of an alias that are kept: a year of weekly releases.
ALIAS_MOVES_KEPT: Final = 50
# Changes of a model that are kept in its own node, which every replica and gateway reads.
MODEL_CHANGES_KEPT: Final = 32
# A version's record is one node of the coordination plane, read by every replica and gateway.
VERSION_BYTES_MAX: Final = 256 * 1024

log = logs.get(__name__)
T = TypeVar("T")
_Data = dict[str, str | int]


class Whatever:
    """For `expect`: the alias may name anything."""


ANY: Final = Whatever()


class _Overtaken(Exception):
    """Somebody else was faster; decide again."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """A model as it was read: what a change is decided upon."""

    name: str
    model: Model
    revision: int | None  # of its node; None: there is none


class Registry(Catalogue):
    """Changes of what is published. `who` signs them."""

    def __init__(self, session: Session, blobs: Blobs, who: str) -> None:
        super().__init__(session)
        self._blobs = blobs
        self._who = who

    # --- publishing -------------------------------------------------------------------------

    def publish(self, draft: VersionDraft) -> Version:
        """Make a version of it: first its parts, durable, then its record, which is the commit.

        The same draft again, from whomever, is the same version. Once that is retired, it becomes
        a new one.
        """
        drafts.check(draft)
        if draft.bundle and not bundles.renew(self._blobs, draft.bundle):
            raise Missing(
                f"the store has no bundle {draft.bundle}",
                why=f"{draft.model} is built from it",
                fix="push the code first: holdfast bundle push NAME DIR",
            )
        parts = {name: put_part(self._blobs, data) for name, data in sorted(draft.files.items())}
        return self._change(draft.model, lambda seen: self._publish(seen, draft, parts))

    def _publish(self, seen: _Seen, draft: VersionDraft, parts: Mapping[str, Part]) -> Version:
        publication = drafts.publication(draft, parts)
        marker = records.publication_path(seen.name, publication)
        before = self._facts.read(marker, fresh=True)
        if before is not None:
            known = self.version(seen.name, from_bytes(marker, Publication, before.data).number)
            if not known.retired:
                return known
        version = self._version_of(draft, parts, publication, seen.model.newest + 1)
        path, data = records.version_path(seen.name, version.number), _bounded(version)

        def happened() -> bool:
            there = self._facts.read(path, fresh=True)
            return there is not None and there.data == data

        words = f"version {version.number} was published"
        known_of: _Data = {"version": version.number}
        if version.job:
            known_of |= {"job": version.job, "step": version.step or 0}
        change = self._entry(records.PUBLISHED, words, known_of)
        transaction = self._begin(seen, change, happened, newest=version.number)
        transaction.create(path, data)
        mark = to_bytes(Publication(version.number))
        if before is None:
            transaction.create(marker, mark)
        else:
            transaction.replace(marker, mark, before.version)
        self._commit(transaction, seen, words)
        return version

    def _version_of(
        self, draft: VersionDraft, parts: Mapping[str, Part], publication: str, number: int
    ) -> Version:
        return Version(
            model=draft.model,
            number=number,
            kind=draft.kind,
            signature=draft.signature,
            files=parts,
            publication=publication,
            published_s=time.time(),
            by=self._who,
            bundle=draft.bundle,
            entry=draft.entry,
            arguments=draft.arguments,
            job=draft.job,
            step=draft.step,
            metrics=draft.metrics,
        )

    # --- aliases ----------------------------------------------------------------------------

    def set_alias(
        self,
        model: str,
        alias: str,
        number: int,
        *,
        expect: int | Whatever | None = ANY,
        why: str = "",
    ) -> Alias:
        """Let the alias name this version. With `expect` only if it names that one now (None: if
        there is no such alias); `Conflict` says who moved it. A retired version is `Refused`."""
        check_alias(alias)
        return self._change(model, lambda seen: self._move(seen, alias, number, expect, why))

    def _move(
        self, seen: _Seen, alias: str, number: int, expect: int | Whatever | None, why: str
    ) -> Alias:
        model = seen.name
        version, revision = self.version_at(model, number)
        if version.retired:
            raise Refused(
                f"{model}@{number} is retired",
                why=version.retired,
                fix=f"choose another one: holdfast models show {model}",
            )
        before, at = self.alias_at(model, alias)
        now = None if before is None else before.version
        if not isinstance(expect, Whatever) and expect != now:
            raise _moved(model, alias, expect, before)
        if before is not None and now == number:
            return before
        move = AliasMove(time.time(), self._who, now, number, why)
        moves = (*(() if before is None else before.moves), move)
        after = Alias(number, moves[-ALIAS_MOVES_KEPT:])
        path, written = records.alias_path(model, alias), to_bytes(after)

        def happened() -> bool:
            there = self.alias(model, alias)
            return there is not None and move in there.moves

        words = f"alias {alias} names version {number}"
        moved: _Data = {"alias": alias, "to": number}
        if now is not None:
            moved["from"] = now
        change = self._entry(records.ALIAS_MOVED, words, moved)
        transaction = self._begin(seen, change, happened)
        transaction.check(records.version_path(model, number), revision)
        if at is None:
            transaction.create(path, written)
        else:
            transaction.replace(path, written, at)
        self._commit(transaction, seen, words)
        return after

    def remove_alias(self, model: str, alias: str) -> bool:
        """After this there is no such alias; whether there was one."""

        def change(seen: _Seen) -> bool:
            before, at = self.alias_at(model, alias)
            if before is None or at is None:
                return False
            words = f"alias {alias} was removed"
            data: _Data = {"alias": alias, "from": before.version}
            gone = self._entry(records.ALIAS_REMOVED, words, data)
            transaction = self._begin(seen, gone, lambda: self.alias(model, alias) is None)
            transaction.remove(records.alias_path(model, alias), at)
            self._commit(transaction, seen, words)
            return True

        return self._change(model, change)

    # --- retiring ---------------------------------------------------------------------------

    def retire(self, model: str, number: int, why: str, *, held_by: Sequence[str] = ()) -> Version:
        """From now on nobody may serve it or name it by an alias, and the store may remove its
        files. `Refused` while an alias names it or a service holds it (`held_by`)."""
        if not why:
            raise Usage("a version is not retired without a reason", fix='give one: --why "..."')

        def change(seen: _Seen) -> Version:
            before, revision = self.version_at(model, number)
            if before.retired:
                return before
            self._check_unused(model, number, held_by)
            after = replace(before, retired=why)
            words = f"version {number} was retired"
            retired = self._entry(records.RETIRED, words, {"version": number})
            transaction = self._begin(
                seen, retired, lambda: self.version(model, number).retired == why
            )
            transaction.replace(records.version_path(model, number), _bounded(after), revision)
            self._commit(transaction, seen, words)
            return after

        return self._change(model, change)

    def _check_unused(self, model: str, number: int, held_by: Sequence[str]) -> None:
        names = [name for name, held in self.aliases(model).items() if held.version == number]
        users = [*(f"alias {name}" for name in names), *(f"service {name}" for name in held_by)]
        if users:
            fix = f"move the alias first: holdfast models alias {model} ALIAS VERSION"
            raise Refused(
                f"{model}@{number} is in use",
                why=f"by {', '.join(users)}",
                fix=fix if names else "wait until the service has unloaded it",
            )

    # --- private ----------------------------------------------------------------------------

    def _change(self, model: str, change: Callable[[_Seen], T]) -> T:
        """Decide upon what is there, until nobody else was faster."""
        path = records.model_path(check_model(model))
        for _ in range(UPDATE_TRIES_MAX):
            fact = self._facts.read(path, fresh=True)
            found = Model() if fact is None else read_model(path, fact)
            try:
                return change(_Seen(model, found, None if fact is None else fact.version))
            except _Overtaken:
                continue
        raise Conflict(
            f"others change the model {model} all the time",
            why=f"{UPDATE_TRIES_MAX} tries were overtaken",
            fix="try again",
        )

    def _entry(self, what: str, words: str, data: _Data) -> HistoryEntry:
        return HistoryEntry(time.time(), 0, what, words, data=data | {"by": self._who})

    def _begin(
        self, seen: _Seen, change: HistoryEntry, happened: Callable[[], bool], newest: int = 0
    ) -> Transaction:
        """A transaction that begins with the announcement, and takes effect only upon `seen`."""
        before, path = seen.model, records.model_path(seen.name)
        history = before.history.with_entry(change).last_kept(MODEL_CHANGES_KEPT)
        number, at_s = newest or before.newest, change.at_s
        after = Model(number, before.changes + 1, change.reason, at_s, history)
        transaction = self._facts.transaction(happened)
        if seen.revision is None:
            return transaction.create(path, to_bytes(after))
        return transaction.replace(path, to_bytes(after), seen.revision)

    def _commit(self, transaction: Transaction, seen: _Seen, words: str) -> None:
        try:
            transaction.commit()
        except Conflict as error:
            raise _Overtaken from error
        log.info("model.updated", model=seen.name, change=words)


def _bounded(version: Version) -> bytes:
    data = to_bytes(version)
    if len(data) > VERSION_BYTES_MAX:
        raise Full(
            f"the record of a version of {version.model} has {len(data)} bytes",
            why=f"it may have {VERSION_BYTES_MAX}: everybody who serves it reads it",
            fix="give fewer files, metrics or arguments",
        )
    return data


def _moved(model: str, alias: str, expect: int | None, now: Alias | None) -> Conflict:
    wanted = "not to be there" if expect is None else f"to name version {expect}"
    if now is None:
        return Conflict(
            f"alias {alias} of {model} was expected {wanted}",
            why="there is no such alias",
            fix="look again, and decide again",
        )
    by = f", moved by {now.moves[-1].by}" if now.moves else ""
    return Conflict(
        f"alias {alias} of {model} was expected {wanted}",
        why=f"it names version {now.version}{by}",
        fix="look again, and decide again",
    )

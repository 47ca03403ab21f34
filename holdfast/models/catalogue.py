"""What is published: reading models, versions and aliases from the coordination plane.

catalogue = Catalogue(session)
catalogue.resolve("digits@prod").version
catalogue.watch("digits", lambda model: ...)      # model.updated
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from holdfast.coordination import Fact, Facts, Follow, Session
from holdfast.coordination.waits import Wake
from holdfast.models import records
from holdfast.models.records import (
    PROD,
    Alias,
    Model,
    Version,
    check_alias,
    check_model,
    split_reference,
)
from holdfast.storage.bundles import BUNDLES
from holdfast.storage.keys import content_key
from holdfast.wire.documents import from_bytes
from holdfast.wire.errors import Missing

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Resolved:
    """What a reference means now. `how`: for people, why this one."""

    version: Version
    how: str


class Catalogue:
    """Models of one cluster, as they are now. May be used by any thread."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._facts = Facts(session)

    def models(self) -> dict[str, Model]:
        """Every model that has a version, by name."""
        names = self._facts.names(records.MODELS, fresh=True)
        found = self._facts.read_all([records.model_path(name) for name in names])
        every = {path.rpartition("/")[2]: read_model(path, fact) for path, fact in found.items()}
        return {name: every[name] for name in names if name in every and every[name].newest}

    def model(self, model: str, wake: Wake | None = None) -> Model | None:
        """The model; None if nothing of it was ever published. `wake` is called at the next change
        of any of its versions and aliases."""
        path = records.model_path(check_model(model))
        fact = self._facts.read(path, wake, fresh=True)
        found = None if fact is None else read_model(path, fact)
        return found if found is not None and found.newest else None

    def versions(self, model: str) -> tuple[Version, ...]:
        """All versions, oldest first, the retired ones too."""
        above = records.versions_path(check_model(model))
        found = self._facts.read_all([f"{above}/{n}" for n in self._facts.names(above, fresh=True)])
        every = [from_bytes(path, Version, fact.data) for path, fact in found.items()]
        return tuple(sorted(every, key=lambda version: version.number))

    def version(self, model: str, number: int) -> Version:
        """One version; `Missing`, with those that there are, if it is none of them."""
        return self.version_at(model, number)[0]

    def aliases(self, model: str) -> dict[str, Alias]:
        """All aliases of a model, by name."""
        above = records.aliases_path(check_model(model))
        names = self._facts.names(above, fresh=True)
        found = self._facts.read_all([f"{above}/{name}" for name in names])
        return {
            path.rpartition("/")[2]: from_bytes(path, Alias, fact.data)
            for path, fact in sorted(found.items())
        }

    def alias(self, model: str, alias: str, wake: Wake | None = None) -> Alias | None:
        """The alias; None if there is none. `wake` is called when that changes."""
        return self.alias_at(model, alias, wake)[0]

    def resolve(self, reference: str) -> Resolved:
        """What `MODEL@NUMBER`, `MODEL@ALIAS` or `MODEL` means now. The plain name is the alias
        `prod`, and without one the newest version that is not retired."""
        model, which = split_reference(reference)
        if isinstance(which, int):
            return Resolved(self.version(model, which), f"version {which}")
        held = self.alias(model, which or PROD)
        if held is not None:
            return Resolved(self.version(model, held.version), f"alias {which or PROD}")
        if which is not None:
            raise self._no_alias(model, which)
        every = [version for version in self.versions(model) if not version.retired]
        if not every:
            raise self.no_model(model)
        return Resolved(every[-1], f"the newest; there is no alias {PROD}")

    def watch(self, model: str, callback: Callable[[Model | None], None]) -> Follow[Model | None]:
        """`model.updated`: call back now and after each change of the model, on a thread of its
        own, until the `Follow` is closed."""
        path = records.model_path(check_model(model))
        return Follow(self._session, path, lambda wake: self.model(model, wake), callback)

    def roots(self) -> tuple[frozenset[str], frozenset[str]]:
        """Keys of the parts and of the bundles that versions need: never to be removed. Those of
        retired versions are not among them."""
        kept = [
            version
            for name in self._facts.names(records.MODELS, fresh=True)
            for version in self.versions(name)
            if not version.retired
        ]
        parts = frozenset(part.key for version in kept for part in version.files.values())
        digests = {version.bundle for version in kept if version.bundle}
        return parts, frozenset(content_key(BUNDLES, digest) for digest in digests)

    # --- with revisions, for whoever changes something ----------------------------------------

    def version_at(self, model: str, number: int) -> tuple[Version, int]:
        """The version, and the revision of its node."""
        path = records.version_path(check_model(model), number)
        fact = self._facts.read(path, fresh=True)
        if fact is None:
            raise self._no_version(model, number)
        return from_bytes(path, Version, fact.data), fact.version

    def alias_at(
        self, model: str, alias: str, wake: Wake | None = None
    ) -> tuple[Alias | None, int | None]:
        """The alias, and the revision of its node."""
        path = records.alias_path(check_model(model), check_alias(alias))
        fact = self._facts.read(path, wake, fresh=True)
        return (None, None) if fact is None else (from_bytes(path, Alias, fact.data), fact.version)

    # --- what is not there ----------------------------------------------------------------------

    def no_model(self, model: str) -> Missing:
        """`Missing`, with the nearest name."""
        names = list(self.models())
        near = difflib.get_close_matches(model, names, n=1, cutoff=0.5)
        if not names:
            why, fix = "nothing was published yet", "holdfast models publish --help"
        else:
            why, fix = "", f"did you mean {near[0]}?" if near else "holdfast models"
        return Missing(f"there is no model {model}", why=why, fix=fix)

    def _no_version(self, model: str, number: int) -> Missing:
        every = self.versions(model)
        if not every:
            return self.no_model(model)
        return Missing(
            f"{model} has no version {number}",
            why=f"its versions go from {every[0].number} to {every[-1].number}",
            fix=f"holdfast models show {model}",
        )

    def _no_alias(self, model: str, alias: str) -> Missing:
        known = ", ".join(self.aliases(model))
        if not known and not self.versions(model):
            return self.no_model(model)
        return Missing(
            f"{model} has no alias {alias}",
            why=f"there are: {known}" if known else "it has none at all",
            fix=f"holdfast models alias {model} {alias} VERSION",
        )


def read_model(path: str, fact: Fact) -> Model:
    """The model's node; an empty one was made as a parent, and nothing happened since."""
    if not fact.data:
        return Model()
    found = from_bytes(path, Model, fact.data)
    return replace(found, history=found.history.filed(fact.zxid))

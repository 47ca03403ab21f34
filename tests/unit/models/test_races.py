"""Two who change one model at once: whoever decided upon what is no longer so decides again."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.coordination import connect
from holdfast.models.registry import Registry
from holdfast.storage import Blobs
from holdfast.wire.errors import Refused
from tests.contract.interleaving import after_first
from tests.unit.models.stage import published


def test_a_version_is_retired_under_an_alias_that_was_set_at_that_moment(
    address: str, registry: Registry, blobs: Blobs, tmp_path: Path
) -> None:
    published(registry, blobs, tmp_path, 2)
    with connect(address) as session:
        other = Registry(session, blobs, "ben")
        with (
            after_first(registry, "_check_unused", lambda: other.set_alias("digits", "prod", 1)),
            pytest.raises(Refused, match="in use"),
        ):
            registry.retire("digits", 1, "old")
        assert not other.version("digits", 1).retired
        assert other.resolve("digits@prod").version.number == 1


def test_an_alias_is_set_to_a_version_that_was_retired_at_that_moment(
    address: str, registry: Registry, blobs: Blobs, tmp_path: Path
) -> None:
    published(registry, blobs, tmp_path, 2)
    with connect(address) as session:
        other = Registry(session, blobs, "ben")
        with (
            after_first(registry, "version_at", lambda: other.retire("digits", 1, "old")),
            pytest.raises(Refused, match="retired"),
        ):
            registry.set_alias("digits", "prod", 1)
        assert other.aliases("digits") == {}


def test_of_two_published_at_the_same_moment_one_has_the_number_of_the_other(
    address: str, registry: Registry, blobs: Blobs, tmp_path: Path
) -> None:
    """The announcement counts changes: a watcher that has seen a count has seen all before it."""
    published(registry, blobs, tmp_path, 1)
    with connect(address) as session:
        other = Registry(session, blobs, "ben")
        with after_first(registry, "alias_at", lambda: other.set_alias("digits", "canary", 1)):
            registry.set_alias("digits", "prod", 1)
        model = other.model("digits")
        assert model is not None and model.changes == 3
        assert set(other.aliases("digits")) == {"canary", "prod"}

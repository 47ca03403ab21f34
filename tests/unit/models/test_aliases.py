"""Aliases, references, announcements, and the end of a version."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from holdfast.control.decide.facts import ObservedState
from holdfast.control.shell.housekeeping import references
from holdfast.coordination import Session, connect
from holdfast.models.loading import check_example, fetch, load
from holdfast.models.records import Model
from holdfast.models.registry import ALIAS_MOVES_KEPT, Registry
from holdfast.storage import Blobs
from holdfast.storage.garbage import Sweeper
from holdfast.wire.errors import Conflict, Missing, Refused, Usage
from tests.unit.models.stage import published, torch_draft
from tests.waiting import eventually

# --- aliases --------------------------------------------------------------------------------------


def test_an_alias_moves_by_compare_and_set_and_remembers_who_moved_it(
    registry: Registry, session: Session, blobs: Blobs, tmp_path: Path
) -> None:
    published(registry, blobs, tmp_path, 3)
    registry.set_alias("digits", "prod", 1, expect=None)
    with pytest.raises(Conflict, match="expected not to be there"):
        registry.set_alias("digits", "prod", 2, expect=None)
    Registry(session, blobs, "ben").set_alias("digits", "prod", 2, expect=1, why="faster")
    with pytest.raises(Conflict) as refused:
        registry.set_alias("digits", "prod", 3, expect=1)
    assert "names version 2, moved by ben" in refused.value.why
    held = registry.alias("digits", "prod")
    assert held is not None
    assert [(move.by, move.before, move.after, move.why) for move in held.moves] == [
        ("anna", None, 1, ""),
        ("ben", 1, 2, "faster"),
    ]
    assert registry.set_alias("digits", "prod", 2) == held


def test_of_many_who_move_an_alias_upon_the_same_version_one_succeeds(
    address: str, registry: Registry, blobs: Blobs, tmp_path: Path
) -> None:
    versions = published(registry, blobs, tmp_path, 5)
    registry.set_alias("digits", "prod", 1)
    outcomes: list[str] = []
    start = threading.Barrier(4)

    def move(number: int) -> None:
        with connect(address) as session:
            start.wait()
            try:
                Registry(session, blobs, str(number)).set_alias("digits", "prod", number, expect=1)
                outcomes.append("moved")
            except Conflict:
                outcomes.append("refused")

    threads = [threading.Thread(target=move, args=(each.number,)) for each in versions[1:]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["moved", "refused", "refused", "refused"]
    held = registry.alias("digits", "prod")
    assert held is not None
    assert [move.after for move in held.moves] == [1, held.version]


def test_an_aliass_history_is_bounded_and_keeps_the_newest(
    registry: Registry, blobs: Blobs, tmp_path: Path
) -> None:
    published(registry, blobs, tmp_path, 2)
    for turn in range(ALIAS_MOVES_KEPT + 3):
        registry.set_alias("digits", "prod", 1 + turn % 2, why=str(turn))
    held = registry.alias("digits", "prod")
    assert held is not None
    assert len(held.moves) == ALIAS_MOVES_KEPT
    assert held.moves[-1].why == str(ALIAS_MOVES_KEPT + 2)


def test_an_alias_that_is_not_a_name_or_names_nothing_is_refused(
    registry: Registry, blobs: Blobs, tmp_path: Path
) -> None:
    published(registry, blobs, tmp_path, 1)
    with pytest.raises(Usage, match="not the name of an alias"):
        registry.set_alias("digits", "7", 1)
    with pytest.raises(Missing, match="has no version 4"):
        registry.set_alias("digits", "prod", 4)
    with pytest.raises(Missing, match="no model nothing"):
        registry.set_alias("nothing", "prod", 1)
    assert registry.aliases("digits") == {}


# --- reading --------------------------------------------------------------------------------------


def test_a_reference_says_which_version_it_means_and_why(
    registry: Registry, blobs: Blobs, tmp_path: Path
) -> None:
    one, two, three = published(registry, blobs, tmp_path, 3)
    assert registry.resolve("digits").version == three
    assert registry.resolve("digits").how == "the newest; there is no alias prod"
    registry.retire("digits", 3, "bad")
    assert registry.resolve("digits").version == two
    registry.set_alias("digits", "prod", 1)
    registry.set_alias("digits", "canary", 2)
    assert registry.resolve("digits").version == one
    assert registry.resolve("digits@canary").version == two
    assert registry.resolve("digits@2").how == "version 2"
    with pytest.raises(Missing) as none:
        registry.resolve("digits@previous")
    assert "there are: canary, prod" in none.value.why
    with pytest.raises(Missing, match="has no version 9"):
        registry.resolve("digits@9")
    with pytest.raises(Missing) as near:
        registry.resolve("digit@1")
    assert near.value.fix == "did you mean digits?"
    with pytest.raises(Usage):
        registry.resolve("digits@")


def test_whoever_watches_a_model_is_told_of_every_kind_of_change(
    address: str, registry: Registry, blobs: Blobs, tmp_path: Path
) -> None:
    seen: list[Model | None] = []
    with connect(address) as other, Registry(other, blobs, "").watch("digits", seen.append):
        eventually(lambda: seen == [None], "nothing is there at first")
        published(registry, blobs, tmp_path, 1)
        eventually(lambda: seen[-1] and seen[-1].newest == 1, "the publication is announced")
        registry.set_alias("digits", "prod", 1)
        eventually(lambda: seen[-1] and "prod" in seen[-1].last, "the alias is announced")
        registry.remove_alias("digits", "prod")
        eventually(lambda: seen[-1] and "removed" in seen[-1].last, "its removal is announced")
        registry.retire("digits", 1, "old")
        eventually(lambda: seen[-1] and "retired" in seen[-1].last, "the end is announced")
    counts = [each.changes for each in seen if each]
    assert counts == sorted(counts)
    assert counts[-1] == 4


# --- retiring -------------------------------------------------------------------------------------


def test_a_version_in_use_is_not_retired(registry: Registry, blobs: Blobs, tmp_path: Path) -> None:
    published(registry, blobs, tmp_path, 2)
    registry.set_alias("digits", "prod", 1)
    with pytest.raises(Refused) as refused:
        registry.retire("digits", 1, "old")
    assert refused.value.why == "by alias prod"
    with pytest.raises(Refused) as refused:
        registry.retire("digits", 2, "old", held_by=["api"])
    assert refused.value.why == "by service api"
    with pytest.raises(Usage, match="without a reason"):
        registry.retire("digits", 2, "")
    assert not any(version.retired for version in registry.versions("digits"))


def test_a_retired_version_takes_no_alias_and_published_again_it_is_a_new_one(
    registry: Registry, blobs: Blobs, tmp_path: Path
) -> None:
    published(registry, blobs, tmp_path, 1)
    retired = registry.retire("digits", 1, "wrong labels")
    assert registry.retire("digits", 1, "again") == retired
    with pytest.raises(Refused, match="is retired") as refused:
        registry.set_alias("digits", "prod", 1)
    assert refused.value.why == "wrong labels"
    assert registry.publish(torch_draft(blobs, tmp_path / "code")).number == 2
    assert registry.publish(torch_draft(blobs, tmp_path / "code")).number == 2


def test_the_stores_sweep_keeps_what_a_version_needs_and_takes_what_none_does(
    registry: Registry, session: Session, blobs: Blobs, tmp_path: Path
) -> None:
    one = registry.publish(torch_draft(blobs, tmp_path / "code" / "code1", scale=2, seed=1))
    two = registry.publish(torch_draft(blobs, tmp_path / "code" / "code2", scale=3, seed=2))

    def sweep() -> None:
        sweeper = Sweeper(blobs, lambda: references(session, ObservedState()), grace_s=0, wait_s=0)
        for _ in range(2):
            sweeper.step()

    sweep()
    for version in (one, two):
        folder = fetch(version, blobs, tmp_path / "cache")
        servable = load(version, folder)
        check_example(servable, version, folder)
        servable.close()
    registry.retire("digits", 1, "old")
    sweep()
    fetch(two, blobs, tmp_path / "cache2")
    with pytest.raises(Missing):
        fetch(one, blobs, tmp_path / "cache2")
    again = registry.publish(torch_draft(blobs, tmp_path / "code" / "code1", scale=2, seed=1))
    assert again.number == 3
    fetch(again, blobs, tmp_path / "cache2")

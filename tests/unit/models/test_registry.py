"""Versions never change, numbers are dense, whoever publishes and whatever dies."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from holdfast.coordination import Session, connect
from holdfast.models.drafts import VersionDraft
from holdfast.models.loading import check_example, fetch, load
from holdfast.models.records import EXAMPLE, WEIGHTS, ModelKind
from holdfast.models.registry import Registry
from holdfast.storage import Blobs
from holdfast.wire.errors import Missing, Usage
from tests.contract.planes import EmbeddedPlane, Plane
from tests.unit.cli.running import ROOT, environment
from tests.unit.models.stage import torch_draft
from tests.waiting import eventually

# A limit, not an expectation: the machine may be busy.
PROCESS_S = 240.0


# --- publishing -----------------------------------------------------------------------------------


def test_the_whole_story_on_both_planes(plane: Plane, blobs: Blobs, tmp_path: Path) -> None:
    with connect(plane.address()) as session:
        registry = Registry(session, blobs, "anna")
        one = registry.publish(
            torch_draft(blobs, tmp_path / "code", seed=1, metrics={"accuracy": 0.9})
        )
        two = registry.publish(torch_draft(blobs, tmp_path / "code", seed=2))
        assert (one.number, two.number) == (1, 2)
        assert registry.publish(torch_draft(blobs, tmp_path / "code", seed=1)).number == 1
        assert registry.versions("digits") == (one, two)
        registry.set_alias("digits", "prod", 1, expect=None, why="first")
        registry.set_alias("digits", "prod", 2, expect=1, why="better")
        assert registry.resolve("digits").version == two
        registry.retire("digits", 1, "old")
        assert [bool(each.retired) for each in registry.versions("digits")] == [True, False]
        found = registry.model("digits")
        assert found is not None
        assert (found.newest, found.changes) == (2, 5)
        folder = fetch(two, blobs, tmp_path / "cache")
        servable = load(two, folder)
        check_example(servable, two, folder)
        servable.close()


def test_what_is_published_again_is_the_same_version(
    registry: Registry, session: Session, blobs: Blobs, tmp_path: Path
) -> None:
    first = registry.publish(torch_draft(blobs, tmp_path / "code", job="train", step=8))
    again = Registry(session, blobs, "ben").publish(
        torch_draft(blobs, tmp_path / "code", job="train", step=8)
    )
    assert again == first
    assert registry.publish(torch_draft(blobs, tmp_path / "code", job="train", step=9)).number == 2
    assert registry.publish(torch_draft(blobs, tmp_path / "code", job="other", step=8)).number == 3


def test_another_rounding_of_a_jobs_example_does_not_make_another_version(
    registry: Registry, blobs: Blobs, tmp_path: Path
) -> None:
    mine = torch_draft(blobs, tmp_path / "code", job="train", step=8)
    first = registry.publish(mine)
    theirs = replace(mine, files={**mine.files, EXAMPLE: b"the last bits differ"})
    assert registry.publish(theirs).number == first.number
    by_hand = torch_draft(blobs, tmp_path / "code")
    other = replace(by_hand, files={**by_hand.files, EXAMPLE: b"another example"})
    assert registry.publish(by_hand).number + 1 == registry.publish(other).number


def test_publishers_at_the_same_time_get_dense_numbers_and_the_same_for_the_same(
    address: str, blobs: Blobs, tmp_path: Path
) -> None:
    drafts = [torch_draft(blobs, tmp_path / "code", seed=seed % 4) for seed in range(8)]
    found: list[tuple[int, int]] = []
    start = threading.Barrier(len(drafts))

    def publish(at: int) -> None:
        with connect(address) as session:
            start.wait()
            version = Registry(session, blobs, f"publisher {at}").publish(drafts[at])
            found.append((at % 4, version.number))

    threads = [threading.Thread(target=publish, args=(at,)) for at in range(len(drafts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == len(drafts)
    assert sorted({number for _, number in found}) == [1, 2, 3, 4]
    assert len(set(found)) == 4
    with connect(address) as session:
        assert len(Registry(session, blobs, "").versions("digits")) == 4


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_publisher_killed_at_its_commit_leaves_no_version_or_the_whole_one(
    address: str, session: Session, blobs: Blobs, tmp_path: Path, when: str
) -> None:
    def run(when: str) -> subprocess.CompletedProcess[str]:
        words = [address, str(tmp_path / "store"), str(tmp_path / "code"), when]
        return subprocess.run(
            [sys.executable, "-m", "tests.unit.models.publisher", *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=PROCESS_S,
            cwd=ROOT,
            env=environment(),
        )

    killed = run(when)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    catalogue = Registry(session, blobs, "")
    before = catalogue.versions("digits")
    assert len(before) == (1 if when == "after" else 0)
    # The parts of an unfinished publication are in the store, and nobody knows them.
    assert len(list(blobs.list("parts"))) == 2
    done = run("never")
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    (version,) = catalogue.versions("digits")
    if before:
        assert before == (version,)
    fetch(version, blobs, tmp_path / "cache")


def test_publishing_rides_through_deaths_of_the_planes_server(blobs: Blobs, tmp_path: Path) -> None:
    """Whatever reply is lost: one version for each publication, and no number is left out."""
    plane = EmbeddedPlane(tmp_path / "plane")
    drafts = [torch_draft(blobs, tmp_path / "code", seed=seed) for seed in range(6)]
    made: list[int] = []
    failed: list[BaseException] = []
    moved: list[int] = []
    over = threading.Event()
    turns = itertools.cycle(range(1, 4))

    def publish(mine: list[VersionDraft]) -> None:
        try:
            with connect(plane.address(timeout_s=20)) as session:
                registry = Registry(session, blobs, "a publisher")
                for each in mine:
                    made.append(registry.publish(each).number)
                while not over.is_set():
                    registry.set_alias("digits", "prod", next(turns))
                    moved.append(1)
        except BaseException as error:
            failed.append(error)
            raise

    def moves(count: int) -> bool:
        return bool(failed) or len(moved) >= count

    with connect(plane.address(timeout_s=20)) as session:
        threads = [threading.Thread(target=publish, args=(drafts[at::2],)) for at in range(2)]
        threads += [threading.Thread(target=publish, args=(drafts[at::3],)) for at in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(2):
            eventually(partial(moves, len(moved) + 20), "the alias moves")
            plane.disturb("kill the server")
        over.set()
        for thread in threads:
            thread.join()
        assert not failed
        registry = Registry(session, blobs, "")
        versions = registry.versions("digits")
        assert [version.number for version in versions] == [1, 2, 3, 4, 5, 6]
        assert sorted(made) == sorted([*range(1, 7)] * 2)
        held = registry.alias("digits", "prod")
        assert held is not None
        # Each move begins where the one before it ended: none was made twice, none was lost.
        assert all(one.after == two.before for one, two in itertools.pairwise(held.moves))
        assert held.version == held.moves[-1].after
    plane.end()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "no/slash"}, "not the name of a model"),
        ({"model": "x" * 64}, "not the name of a model"),
        ({"entry": ""}, "needs code and an entry"),
        ({"files": {}}, f"needs the file {WEIGHTS}"),
        ({"kind": ModelKind.ONNX}, "needs the file model.onnx"),
        ({"arguments": {"x": object()}}, "cannot be written down"),
        ({"metrics": {"loss": float("nan")}}, "cannot be written down"),
        ({"files": {WEIGHTS: b"", **{str(n): b"" for n in range(64)}}}, "are too many"),
    ],
)
def test_a_draft_that_cannot_be_served_is_refused_before_anything_is_written(
    registry: Registry, blobs: Blobs, tmp_path: Path, change: dict[str, object], words: str
) -> None:
    with pytest.raises(Usage, match=words):
        registry.publish(replace(torch_draft(blobs, tmp_path / "code"), **change))  # type: ignore[arg-type]
    assert not list(blobs.list("parts"))


def test_a_draft_whose_code_is_not_in_the_store_is_refused(
    registry: Registry, blobs: Blobs, tmp_path: Path
) -> None:
    missing = replace(torch_draft(blobs, tmp_path / "code"), bundle=f"sha256:{'0' * 64}")
    with pytest.raises(Missing, match="no bundle"):
        registry.publish(missing)

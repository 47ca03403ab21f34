"""The crash proof in short, and the proof that its checks see what they are for.

`python -m tests.proofs.crash --kills 200` is the long one.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.proofs import seed_of
from tests.proofs.crash import sabotage
from tests.proofs.crash.audit import Auditor
from tests.proofs.crash.model import Asker, Node, State, Stream, Violation
from tests.proofs.crash.torture import Torture

pytestmark = pytest.mark.engines

KILLS = 12
SEED = 1


@pytest.mark.parametrize("torn", [False, True], ids=["clean-tails", "torn-tails"])
def test_nothing_acknowledged_is_lost_when_the_server_is_killed_under_writers(
    tmp_path: Path, torn: bool
) -> None:
    seed = seed_of(SEED)
    print(f"seed {seed}")
    torture = Torture(tmp_path, seed=seed, kills=KILLS, torn=torn)
    torture.run()
    print(torture.summary())
    assert torture.tally["kills"] == KILLS
    assert torture.auditor.acknowledged > 0
    assert torture.recovered_from_snapshots() > 0
    if torn:
        assert torture.tally["tails torn"] > 0


@pytest.mark.parametrize("way", sabotage.EVERY)
def test_the_checks_see_a_loss_made_on_purpose(tmp_path: Path, way: str) -> None:
    seed = seed_of(SEED)
    print(f"seed {seed}")
    torture = Torture(tmp_path, seed=seed, kills=30, writer_count=3, sabotaged=way)
    with pytest.raises(Violation) as seen:
        torture.run()
    print(seen.value)
    assert torture.harmed


def stream_with_open_requests(seed: int) -> tuple[Stream, Asker]:
    asker = Asker("/writer-0", "0", random.Random(seed))
    stream = Stream(State({name: Node(b"0", 0, False) for name in ("counter", "line")}))
    for _ in range(20):
        stream.open.append(asker.next(stream.planned))
    return stream, asker


@pytest.mark.parametrize("kept", [0, 1, 7, 20])
def test_every_prefix_of_the_open_requests_is_accepted(kept: int) -> None:
    stream, _ = stream_with_open_requests(seed=kept)
    found = stream.open[kept - 1].after if kept else stream.state
    stream.settle(found, "0")
    assert stream.state == found
    assert not stream.open


def test_a_state_with_a_hole_in_the_open_requests_is_refused() -> None:
    stream, asker = stream_with_open_requests(seed=1)
    base, asker.number = stream.state, 101
    stream.open = [asker._create(base)]
    asker.number = 102
    stream.open.append(asker._create(stream.planned))
    hole = base.with_node("n102", stream.planned.nodes["n102"])
    with pytest.raises(Violation, match="no prefix"):
        stream.settle(hole, "0")


def test_half_of_a_multi_is_refused() -> None:
    stream, asker = stream_with_open_requests(seed=1)
    stream.open = [asker._multi(stream.state)]
    half = stream.planned.with_node(f"m{asker.number}b", None)
    with pytest.raises(Violation, match="no prefix"):
        stream.settle(half, "0")


def test_a_sequence_number_that_is_used_twice_is_refused() -> None:
    auditor = Auditor(random.Random(1))
    auditor.joined(10, "0-1-0000000004")
    with pytest.raises(Violation, match="was used before"):
        auditor.joined(11, "1-9-0000000004")


def test_one_zxid_for_two_writes_is_refused() -> None:
    auditor = Auditor(random.Random(1))
    auditor.wrote(10, "0:1")
    with pytest.raises(Violation, match="was given to"):
        auditor.wrote(10, "1:1")

"""What is computed of a version before it answers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from holdfast.models.examples import Example
from holdfast.models.records import ModelKind, Signature, Version
from holdfast.serve.replica import trial
from holdfast.serve.replica.batching import Array, BatchPace
from holdfast.serve.replica.trial import Manner

X = np.zeros((2, 3), dtype=np.float32)
EXAMPLE = Example({"x": X}, {"y": X})
RECORD = Version("m", 1, ModelKind.TORCH, Signature((), ()), {}, "sha256:1", 0.0)


class Counts:
    """Says how many rows it was asked for; more than `most` at once are too many for it."""

    def __init__(self, most: int = 64) -> None:
        self.rows: list[int] = []
        self._most = most

    def predict(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        self.rows.append(len(inputs["x"]))
        if self.rows[-1] > self._most:
            raise MemoryError("too many rows")
        return {"y": inputs["x"]}

    def close(self) -> None: ...


@pytest.mark.parametrize("pace", [BatchPace.INSTANT, BatchPace.SHORT, BatchPace.LONG])
def test_what_a_trial_has_found_out_is_not_computed_again_beside_requests(pace: BatchPace) -> None:
    servable, known = Counts(), Manner(batches=True, pace=pace)
    assert trial._warmed(servable, RECORD, EXAMPLE, 64, known) == known
    assert servable.rows == [1]
    alone = Counts()
    assert not trial._warmed(alone, RECORD, EXAMPLE, 64, Manner(False, pace)).batches
    assert alone.rows == []


def test_on_a_gpu_the_largest_batch_is_computed_where_it_will_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trial, "_on_gpu", lambda record: True)
    known = Manner(batches=True, pace=BatchPace.SHORT)
    servable = Counts()
    found = trial._warmed(servable, RECORD, EXAMPLE, 64, known)
    assert found == Manner(batches=True, pace=BatchPace.LONG)
    assert servable.rows == [1, 64]
    assert not trial._warmed(Counts(most=32), RECORD, EXAMPLE, 64, known).batches

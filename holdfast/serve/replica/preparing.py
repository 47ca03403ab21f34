"""From a version's files to something that is warm and has given the right answer."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from holdfast.models import examples, loading
from holdfast.models.examples import Example
from holdfast.models.files_kind import ALLOW_PICKLE
from holdfast.models.kinds import Servable
from holdfast.models.records import TORCH_KINDS, Version
from holdfast.serve.replica.batching import Pace, first_line
from holdfast.serve.replica.joining import Array, repeated, shape_of
from holdfast.wire import logs
from holdfast.wire.limits import INLINE_LATE_S, INLINE_S

# One shorter than this is done at once: putting several requests together costs more.
INSTANT_S: Final = 0.00003
# Times that the example is computed before a version is ready, at each size: the first is slow. A
# model that computes for long is not asked again and again: none begins after the second.
WARM_UP_TRIES: Final = 5
WARM_UP_S: Final = 0.25

log = logs.get(__name__)


class Manner(NamedTuple):
    """How a version computes. `batches`: rows of several requests may go together."""

    batches: bool
    pace: Pace


class Prepared(NamedTuple):
    """A version that can answer."""

    servable: Servable
    manner: Manner


def prepare(record: Version, folder: Path, batch_max: int, known: Manner | None = None) -> Prepared:
    """Load it, warm it up at the sizes that it will be asked for, and compare its example.
    `known`: how it computes, if that was measured on this machine: it is computed less often."""
    servable = loading.load(record, folder)
    _bound_threads()
    try:
        # Of several the largest: what takes longest decides where it is computed.
        known_ones = examples.read_all(folder, record.signature)
        example = max(known_ones, key=_elements, default=None)
        if known is None or example is None:
            known = _measured(servable, record, example, batch_max)
        else:
            known = _warmed(servable, record, example, batch_max, known)
        loading.check_example(servable, record, folder)
    except BaseException:
        servable.close()
        raise
    return Prepared(servable, known)


def _elements(example: Example) -> int:
    return sum(array.size for array in example.inputs.values())


def _warmed(
    servable: Servable, record: Version, example: Example, most: int, known: Manner
) -> Manner:
    """Computed once, alone. The example's own size is computed when it is compared, and the largest
    one by whoever has found out how it computes: beside requests it would take a core for long. But
    on a GPU here too: a batch takes memory there, of which this process may have less."""
    batches = known.batches
    if batches:
        servable.predict(repeated(example.inputs, 1))
    if not _on_gpu(record):
        return known
    if batches:
        batches = not _trouble(servable, repeated(example.inputs, max(1, most)), max(1, most))
    return Manner(batches, Pace.LONG)


def _measured(servable: Servable, record: Version, example: Example | None, most: int) -> Manner:
    """Whether it batches, and how long it computes."""
    batches = record.signature.batches
    if example is None:
        return Manner(batches, Pace.LONG)
    key, _ = shape_of(example.inputs)
    if not batches or key is None:
        return Manner(False, _pace(record, _timed(servable, example.inputs)))
    one, many = repeated(example.inputs, 1), repeated(example.inputs, max(1, most))
    alone = _pace(record, _timed(servable, one))
    trouble = _trouble(servable, many, max(1, most))
    if trouble:
        log.warning(
            "a version is computed request by request",
            version=f"{record.model}@{record.number}",
            reason=trouble,
        )
        return Manner(False, alone)
    together = _pace(record, _timed(servable, many))
    return Manner(True, Pace.LONG if together is Pace.LONG else alone)


def _trouble(servable: Servable, inputs: Mapping[str, Array], rows: int) -> str:
    """What is wrong with its largest batch; empty: nothing."""
    try:
        outputs = servable.predict(inputs)
    except Exception as error:
        return f"a batch of {rows} rows fails: {first_line(error)}"
    odd = [name for name, array in outputs.items() if array.shape[:1] != (rows,)]
    return f"output {odd[0]!r} does not have a row for each row of the inputs" if odd else ""


def _timed(servable: Servable, inputs: Mapping[str, Array]) -> list[tuple[float, float]]:
    """How long it takes, several times: of this thread's own time, and by the clock."""
    took: list[tuple[float, float]] = []
    first_s = time.monotonic()
    while len(took) < WARM_UP_TRIES and time.monotonic() - first_s < WARM_UP_S:
        own_s, began_s = time.thread_time(), time.monotonic()
        servable.predict(inputs)
        took.append((time.thread_time() - own_s, time.monotonic() - began_s))
    return took


def _pace(record: Version, took: list[tuple[float, float]]) -> Pace:
    """By the thread's own time, since the machine may be busy with requests. The clock's time is
    looked at for those that wait for something. What a GPU computes does not show in either, and
    another process may never answer."""
    if _on_gpu(record) or record.arguments.get(ALLOW_PICKLE):
        return Pace.LONG
    own_s = min(own for own, _ in took)
    clock_s = min(clock for _, clock in took)
    if own_s >= INLINE_S or clock_s >= INLINE_LATE_S:
        return Pace.LONG
    return Pace.INSTANT if own_s < INSTANT_S else Pace.SHORT


def _bound_threads() -> None:
    """Torch computes with as many threads as the replica was given cores. It reads the variable
    when it is imported, which another process may have done for us."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))


def _on_gpu(record: Version) -> bool:
    torch = sys.modules.get("torch")
    return record.kind in TORCH_KINDS and torch is not None and torch.cuda.is_initialized()

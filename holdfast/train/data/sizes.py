"""How much a step takes: what the script says, unless the job's settings say something else.

`lane_batch` and `accumulate` are live: `holdfast set JOB lane_batch=64 --at-step 500` takes effect
at that step, on every worker, and the epoch goes on with the samples that are left.
"""

from __future__ import annotations

from holdfast.train.data.order import Size
from holdfast.train.settings import Settings
from holdfast.wire.errors import Usage


class Sizes:
    """`sizes()` is the size of the step under way. `lane_batch` None: a batch sampler decides.
    `live` False: the settings are looked at once, now."""

    def __init__(
        self, settings: Settings, lane_batch: int | None, parts: int, *, live: bool = True
    ) -> None:
        self._settings = settings
        self._batch, self._parts = lane_batch, parts
        self._last: tuple[int | None, int, Size] | None = None
        self._fixed: Size | None = None
        self._fixed = None if live else self()

    def __call__(self) -> Size:
        if self._fixed is not None:
            return self._fixed
        batch = None if self._batch is None else self._given("lane_batch", self._batch)
        parts = self._given("accumulate", self._parts)
        if self._last is None or self._last[:2] != (batch, parts):
            self._last = (batch, parts, Size(1 if batch is None else batch, parts))
        return self._last[2]

    def _given(self, name: str, otherwise: int) -> int:
        value = self._settings.given(name)
        if value is None:
            return otherwise
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise Usage(
                f"the setting {name}={value!r}",
                why="a step takes a whole number of samples, from 1 on",
                fix=f"holdfast set JOB {name}=32",
            )
        return value

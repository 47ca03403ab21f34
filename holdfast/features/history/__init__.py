"""Feature history: every row that ever was, as a Delta Lake table in the blob store.

- `newest`         the rule: which row was the newest one known at a time (pure)
- `shape`          a table as Delta Lake columns, and rows as a frame of them
- `places`         where a history lies, and how the libraries reach it
- `log`            Delta's log: snapshots, and commits on the very snapshot that was read
- `lake`           one table's history: made, changed, appended to, read, erased from
- `upkeep`         what is merged and removed, and when (pure), and the job that does it
- `exactly_once`   rows and the offsets of their source, committed together
- `entities`       whom somebody asks about, and for which times
- `asof`           `history(...)`: what was known then, within bounded memory
- `dataset`        the same as tensors for `run.batches`, with a digest

It needs polars and deltalake, which come with the extra `features`.
"""

from holdfast.system.extras import require_extra

for _module in ("polars", "deltalake"):
    require_extra(_module, "features")

from holdfast.features.history.asof import History, history  # noqa: E402 - they need what is above
from holdfast.features.history.exactly_once import HistoryWriter, SourceRows  # noqa: E402
from holdfast.features.history.lake import Lake  # noqa: E402

__all__ = ["History", "HistoryWriter", "Lake", "SourceRows", "history"]

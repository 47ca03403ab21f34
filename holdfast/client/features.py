"""The feature tables of a cluster: definitions and rows, opened together and closed together."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.client.opening import Opened
from holdfast.cluster import features as of_cluster
from holdfast.features.registry import TableRegistry
from holdfast.features.store import FeatureStore
from holdfast.features.table import Table, TableChange
from holdfast.wire.errors import Missing


class ClusterFeatures(FeatureStore):
    """Tables that are declared, read, written and removed. Any thread may use it; whoever opens it
    closes it, before the client."""

    def __init__(self, found: Opened, *, wants: bool = False) -> None:
        """`wants`: from now on the cluster has a store; otherwise `Missing`, if it has none."""
        where = of_cluster.wanted(found.session) if wants else of_cluster.record(found.session)
        if where is None:
            raise Missing(
                f"there are no feature tables in the cluster {found.cluster.name}",
                why="its store is started with the first one",
                fix="holdfast features apply tables.py",
            )
        self.where = where
        self.online = of_cluster.open(found.cluster, where)
        self.registry = TableRegistry(found.session)
        super().__init__(self.registry.known, self.online)

    def close(self) -> None:
        super().close()
        self.registry.close()

    def apply(self, wanted: Sequence[Table]) -> list[TableChange]:
        """Make these tables, or change them; those that are not among them stay. What it did.
        `Conflict`: something that is written would be lost."""
        changes = self.registry.plan(wanted)

        def prepare(change: TableChange) -> None:
            if change.is_new:
                # What a removal that failed has left is none of this table's.
                self.online.forget(change.table)
            self.online.prepare(change.table)

        self.registry.apply(changes, prepare)
        return changes

    def remove(self, table: str) -> None:
        """Remove a table with all its rows."""
        self.registry.remove(table, self.online.forget)

"""From a command's words to the feature tables of a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.options import opened

if TYPE_CHECKING:
    from holdfast.client.features import ClusterFeatures
    from holdfast.features.registry import TableRegistry

TableArgument = Annotated[str, typer.Argument(metavar="TABLE", help="The table's name.")]
KeyArgument = Annotated[
    list[str], typer.Argument(metavar="KEY...", help="The parts of the key, in their order.")
]


@contextmanager
def open_registry(cluster: Path | None) -> Iterator[TableRegistry]:
    """The definitions alone: no store is asked, or started."""
    from holdfast.features.registry import TableRegistry

    with opened(cluster) as found, TableRegistry(found.session) as registry:
        yield registry


@contextmanager
def open_features(cluster: Path | None, *, wants: bool = False) -> Iterator[ClusterFeatures]:
    """Definitions and rows. `wants`: if there is no store yet, it is started."""
    from holdfast.client.features import ClusterFeatures

    with opened(cluster) as found, ClusterFeatures(found, wants=wants) as features:
        yield features

"""From a command's words to the cluster that it is about: the options, and the client over it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import completion, output
from holdfast.client import opening
from holdfast.client.opening import Opened, missing

if TYPE_CHECKING:
    from holdfast.client import Client

__all__ = [
    "ClusterOption",
    "JobArgument",
    "JsonOption",
    "Opened",
    "client_of",
    "missing",
    "opened",
]

ClusterOption = Annotated[
    Path | None,
    typer.Option("--cluster", help="The cluster's folder.", envvar="HOLDFAST_CLUSTER"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
JobArgument = Annotated[
    str, typer.Argument(metavar="JOB", help="The job's name.", autocompletion=completion.jobs)
]


def client_of(folder: Path | None, *, reads: bool = False) -> Client:
    """A client whose remarks are told on stderr. `reads`: what a cluster has left will do."""
    from holdfast.client import Client

    return Client(folder, reads=reads, note=output.note)


def opened(
    folder: Path | None, *, reads: bool = False, patience_s: float | None = None
) -> AbstractContextManager[Opened]:
    """For what the client has no verb for: see `client.opening.opened`."""
    return opening.opened(folder, reads=reads, patience_s=patience_s, note=output.note)

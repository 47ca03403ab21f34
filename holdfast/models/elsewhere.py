"""Publishing a model that was trained elsewhere: its file or folder is here, or in a bucket.

    from holdfast import models
    models.publish("iris", "s3://team/iris.skops?region=eu-west-1", alias="prod")

In a worker (a handler of `holdfast subscribe`, a job that a trigger has started) it is published
with the worker's own credentials; elsewhere `Client.publish` does the same for a cluster.
"""

from __future__ import annotations

import os
import tempfile
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from holdfast.coordination import connect
from holdfast.models.publishing import VersionFiles
from holdfast.models.publishing import check as check_files
from holdfast.models.publishing import publish as publish_files
from holdfast.models.records import ModelKind, Version, check_alias
from holdfast.models.registry import Registry
from holdfast.storage import Blobs, open_store
from holdfast.wire import worker_messages
from holdfast.wire.errors import Missing, Usage

# A model is files that somebody chose; a bucket may be anything.
SOURCE_FILES_MAX: Final = 10_000
_REMOTE: Final = "s3://"


def is_remote(source: str | os.PathLike[str]) -> bool:
    return isinstance(source, str) and source.startswith(_REMOTE)


@contextmanager
def local_source(source: str | os.PathLike[str]) -> Iterator[Path]:
    """The file or folder, on this machine for as long as the block runs. `s3://BUCKET/KEY` is one
    object, or all below that prefix; its parameters are those of a store's address."""
    if not is_remote(source):
        yield Path(source)
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-fetch-") as held:
        yield _fetched(str(source), Path(held))


def _fetched(address: str, held: Path) -> Path:
    parts = urllib.parse.urlsplit(address)
    above, _, name = parts.path.strip("/").rpartition("/")
    if not name:
        raise Usage(
            f"{address} names a whole bucket", fix="s3://BUCKET/path/model.onnx, or a folder of it"
        )
    blobs = open_store(urllib.parse.urlunsplit(parts._replace(path=f"/{above}")))
    one = blobs.stat(name)
    keys = [name] if one is not None else []
    for listed in blobs.list(name) if one is None else ():
        keys.append(listed.key)
        if len(keys) > SOURCE_FILES_MAX:
            raise Usage(f"{address} has more than {SOURCE_FILES_MAX} files", fix="name the model's")
    if not keys:
        raise Missing(f"there is nothing at {address}", fix="look at its bucket and its name")
    for key in keys:
        path = held / key
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            for piece in blobs.stream(key):
                file.write(piece)
    return held / name


def check(given: VersionFiles, source: str | os.PathLike[str] | None) -> None:
    """What can be known before anything is read or connected."""
    if source is not None and given.source is not None:
        raise Usage(f"{source} and {given.source} both name a model", fix="give one of them")
    if source is None:
        check_files(given)
    elif not is_remote(source):
        check_files(replace(given, source=Path(source)))


def publish_from(
    registry: Registry, blobs: Blobs, given: VersionFiles, source: str | os.PathLike[str] | None
) -> Version:
    """`publishing.publish`, of a source that may be in a bucket."""
    if source is None:
        return publish_files(registry, blobs, given)
    with local_source(source) as path:
        return publish_files(registry, blobs, replace(given, source=path))


def publish(
    name: str,
    source: str | os.PathLike[str],
    *,
    kind: str | None = None,
    examples: Sequence[Mapping[str, Any]] = (),
    metrics: Mapping[str, float] | None = None,
    alias: str | None = None,
    allow_pickle: bool = False,
) -> Version:
    """The next version of a model, from a worker. The same files again are the same version, so a
    handler that is called twice for one record does no harm."""
    if alias is not None:
        check_alias(alias)
    environment = os.environ
    plane = environment.get(worker_messages.COORDINATION_VARIABLE)
    store = environment.get(worker_messages.STORE_VARIABLE)
    if not plane or not store:
        raise Usage(
            f"{name} cannot be published from here",
            why="no agent has started this process",
            fix="with holdfast.Client() as client: client.publish(...)",
        )
    given = files_of(name, kind, examples, metrics, allow_pickle=allow_pickle)
    by = f"job {environment.get(worker_messages.JOB_VARIABLE, '')}"
    with connect(plane) as session:
        blobs = open_store(store)
        registry = Registry(session, blobs, by)
        version = publish_from(registry, blobs, given, source)
        if alias is not None:
            registry.set_alias(name, alias, version.number, why=f"published by {by}")
    return version


def files_of(
    name: str,
    kind: str | None,
    examples: Sequence[Mapping[str, Any]],
    metrics: Mapping[str, float] | None,
    *,
    allow_pickle: bool,
) -> VersionFiles:
    """What is to be published, but for its source."""
    import numpy as np  # noqa: PLC0415 - who has no example needs none

    known = [each.value for each in ModelKind]
    if kind is not None and kind not in known:
        raise Usage(f"{kind!r} is not a kind of model", fix=f"one of {', '.join(known)}")
    arrays = [{key: np.asarray(value) for key, value in each.items()} for each in examples]
    return VersionFiles(
        name,
        kind=None if kind is None else ModelKind(kind),
        examples=arrays,
        metrics=metrics or {},
        allow_pickle=allow_pickle,
    )

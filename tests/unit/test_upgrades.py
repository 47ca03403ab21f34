"""What a newer version has written is read by this one, though it has a field more: machines are
upgraded one after the other. What people write is not: there a key too many is a mistake."""

from __future__ import annotations

import json
import types
from collections.abc import Callable
from dataclasses import asdict, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest

from holdfast.agent.entries import decode, encode
from holdfast.agent.events import Ending, Entry, Identity, Key
from holdfast.agent.folders import Folders
from holdfast.cluster import folder as cluster_folder
from holdfast.cluster import registry
from holdfast.control import codec, jobfile
from holdfast.launch import serving
from holdfast.models.records import Alias, Model, Publication, Version
from holdfast.serve.gateway.memory import Memory
from holdfast.serve.records import Course, Gateway, Replica, ReplicaStats, Service
from holdfast.storage import bundle_names
from holdfast.wire import documents, talk
from holdfast.wire.errors import Usage
from holdfast.wire.orders import Attempt, View
from holdfast.wire.reports import Part
from tests.unit.agent.test_journal import ENTRIES
from tests.unit.control.test_codec import JOB

NEWER = "of_a_newer_version"
KINDS = [
    Alias,
    Course,
    Gateway,
    Memory,
    Model,
    Publication,
    Replica,
    ReplicaStats,
    Service,
    Version,
    codec.Checkpoint,
    codec.Queue,
    codec.State,
    codec.Wish,
]


def sample(kind: Any) -> Any:
    """A value of this kind, with something in each of its fields."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return sample(next(each for each in inner if each is not type(None)))
    if origin is tuple:
        return (sample(inner[0]),)
    if origin is not None:
        return {sample(inner[0]): sample(inner[1])}
    if issubclass(kind, Enum):
        return next(iter(kind))
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{each.name: sample(hints[each.name]) for each in fields(kind)})
    return {int: 3, float: 1.5, bool: True}.get(kind, "x")


def of_newer(kind: Any, plain: Any) -> Any:
    """The same with one field more wherever a dataclass was written down."""
    origin, inner = get_origin(kind), get_args(kind)
    if plain is None:
        return None
    if origin in (Union, types.UnionType):
        return of_newer(next(each for each in inner if each is not type(None)), plain)
    if origin is tuple:
        return [of_newer(inner[0], each) for each in plain]
    if origin is not None:
        return {key: of_newer(inner[1], each) for key, each in plain.items()}
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return {NEWER: 1} | {name: of_newer(hints[name], held) for name, held in plain.items()}
    return plain


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_document_with_a_field_more_is_read(kind: type) -> None:
    value = sample(kind)
    plain = {"format": documents.FORMAT} | of_newer(kind, documents.plain_of(value))
    assert NEWER in plain
    data = json.dumps(plain).encode()
    assert documents.from_bytes("/path", kind, data) == value


def added(plain: Any) -> Any:
    return {**(plain if isinstance(plain, dict) else json.loads(plain)), NEWER: 1}


SETTINGS = JOB.settings
HISTORY = [codec.Entry(1.0, 0, "Asked", "scale")]


@pytest.mark.parametrize(
    ("read", "plain", "value", "rows"),
    [
        (codec.settings_from, codec.settings_to(SETTINGS), SETTINGS, "settings"),
        (codec.names_from, codec.names_to({"a", "b"}), frozenset({"a", "b"}), ""),
        (codec.asked_from, codec.asked_to(HISTORY), tuple(HISTORY), "asked"),
        (codec.view_from, codec.view_to(JOB.view or View(0, {})), JOB.view, ""),
        (
            codec.placements_from,
            codec.placements_to(JOB.placements),
            JOB.placements,
            "placements",
        ),
        (codec.entries_from, codec.entries_to(HISTORY), tuple(HISTORY), "entries"),
    ],
    ids=["settings", "names", "asked", "view", "placements", "history"],
)
def test_a_page_with_a_field_and_a_column_more_is_read(
    read: Callable[[str, Any], Any], plain: Any, value: Any, rows: str
) -> None:
    later = added(plain)
    if rows:
        later[rows] = [[*row, "more"] for row in later[rows]]
    given = json.dumps(later).encode() if isinstance(plain, bytes) else later
    assert read("/path", given) == value


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: type(entry).__name__)
def test_an_entry_of_a_journal_with_a_field_more_is_read(entry: Entry) -> None:
    record = added(json.dumps(encode(entry)))
    for name in {"order", "slots"} & set(record):
        record[name] = added(record[name])
    if "order" in record:
        record["order"]["resources"] = added(record["order"]["resources"])
    for name in {"key", "identity"} & set(record):
        record[name] = [*record[name], "more"]
    assert decode(record) == entry


def test_what_a_newer_shim_wrote_of_a_worker_is_read(tmp_path: Path) -> None:
    folders, key = Folders(tmp_path), Key("job", 1)
    folders.make()
    folders.worker(key).mkdir()
    identity, ending = Identity(1, 2, "boot"), Ending(code=3, word="done")
    (folders.worker(key) / "claim").write_text(json.dumps(added(identity._asdict())))
    (folders.worker(key) / "exit").write_text(json.dumps(added(asdict(ending))))
    assert folders.claim(key) == identity
    assert folders.ending(key) == ending


def test_what_a_newer_agent_and_a_newer_worker_say_to_each_other_is_read() -> None:
    view, attempt, part = View(2, {1: (0,)}, 3, "m"), Attempt(1, 2, 3, 4.0), Part("k", 5, "d")
    assert talk.view_from(added(talk.view_body(view))) == view
    assert talk.attempt_from(added(asdict(attempt))) == attempt
    assert talk.parts_from([added(asdict(part))]) == (part,)


def test_the_record_of_a_bundles_name_with_a_field_more_is_read() -> None:
    digest = "sha256:" + "0" * 64
    name = bundle_names.pushed(None, "trainer", digest, 7, 1.0)
    later = added(bundle_names.to_bytes(name))
    later["versions"] = [[*row, "more"] for row in later["versions"]]
    assert bundle_names.from_bytes(json.dumps(later).encode()) == name


def test_the_files_of_a_clusters_folder_with_a_field_more_are_read(tmp_path: Path) -> None:
    cluster = cluster_folder.create(tmp_path / "cluster", name="reef")
    file = cluster.folder / "cluster.json"
    file.write_text(json.dumps(added(file.read_bytes())))
    assert cluster_folder.opened(cluster.folder) == cluster
    with registry.register(cluster, "agent", "n1") as registration:
        path = registry.record_path(cluster, "agent", "n1")
        path.write_text(json.dumps(added(path.read_bytes())))
        assert registry.recorded(cluster, "agent", "n1") == registration.process
    serving._write(cluster, {"g": serving.Place("127.0.0.1:1")})
    path = serving._path(cluster)
    found = json.loads(path.read_text())
    found["gateways"]["g"][NEWER] = 1
    path.write_text(json.dumps(added(found)))
    assert serving.places(cluster) == {"g": serving.Place("127.0.0.1:1")}


def test_a_key_that_a_person_wrote_wrongly_is_still_a_mistake() -> None:
    text = "name: train\ncommand: [python, train.py]\nresources: {memry: 1GiB}\n"
    with pytest.raises(Usage, match="memory"):
        jobfile.parse(text, "job.yaml")

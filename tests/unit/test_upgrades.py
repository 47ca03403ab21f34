"""What a newer version has written is read by this one, though it has a field more: machines are
upgraded one after the other. What people write is not: there a key too many is a mistake."""

from __future__ import annotations

import json
import types
from collections.abc import Callable
from dataclasses import asdict, fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

import pytest

from holdfast.agent.events import (
    Accepted,
    Ending,
    Entry,
    Forgotten,
    Identity,
    Key,
    Slots,
    TermSeen,
)
from holdfast.agent.folders import Folders
from holdfast.agent.journal import NAME, Journal, decode, encode, recovered, written
from holdfast.cluster import folder as cluster_folder
from holdfast.cluster import registry
from holdfast.control.decide.facts import Checkpoint, DesiredSpec, QueueQuota
from holdfast.control.jobfile import reading as jobfile
from holdfast.control.store import codec
from holdfast.launch import serving
from holdfast.models.records import Alias, Model, Publication, Version
from holdfast.serve.gateway.gateway import LastKnown
from holdfast.serve.records import Gateway, Replica, ReplicaStats, RolloutPlan, ServiceSpec
from holdfast.storage import bundle_names
from holdfast.wire import documents, history, sharing, values, worker_messages
from holdfast.wire.errors import Usage
from holdfast.wire.orders import Attempt, GiveView, StartWorker, TakeShare, View
from holdfast.wire.plain import plain_of
from holdfast.wire.probes import Probe, ProbeKind
from holdfast.wire.reports import Exit, ExitKind, NodeFacts, Part, WorkerFacts, WorkerPhase
from holdfast.wire.resources import Resources
from tests.unit.agent.test_journal import ENTRIES
from tests.unit.control.test_codec import JOB

NEWER = "of_a_newer_version"
KINDS = [
    Alias,
    RolloutPlan,
    Gateway,
    LastKnown,
    Model,
    Publication,
    Replica,
    ReplicaStats,
    ServiceSpec,
    Version,
    Checkpoint,
    QueueQuota,
    codec.JobState,
    DesiredSpec,
]


def sample(kind: Any) -> Any:
    """A value of this kind, with something in each of its fields."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return sample(next(each for each in inner if each is not type(None)))
    if origin is tuple:
        return tuple(sample(each) for each in inner if each is not Ellipsis)
    if origin is not None:
        return {sample(inner[0]): sample(inner[1])}
    if issubclass(kind, Enum):
        return next(iter(kind))
    if is_dataclass(kind):
        hints, make = get_type_hints(kind), cast("Callable[..., Any]", kind)
        return make(**{each.name: sample(hints[each.name]) for each in fields(kind)})
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
    plain = {"format": documents.FORMAT} | of_newer(kind, plain_of(value))
    assert NEWER in plain
    data = json.dumps(plain).encode()
    assert documents.from_bytes("/path", kind, data) == value


def added(plain: Any) -> Any:
    return {**(plain if isinstance(plain, dict) else json.loads(plain)), NEWER: 1}


SETTINGS = JOB.settings
HISTORY = history.HistoryPage((history.HistoryEntry(1.0, 0, "Asked", "scale"),))


@pytest.mark.parametrize(
    ("read", "plain", "value", "rows"),
    [
        (codec.settings_from, codec.settings_to(SETTINGS), SETTINGS, "settings"),
        (codec.names_from, codec.names_to({"a", "b"}), frozenset({"a", "b"}), ""),
        (history.audit_from, history.audit_to(HISTORY), HISTORY, "entries"),
        (codec.view_from, codec.view_to(JOB.view or View(0, {})), JOB.view, ""),
        (
            codec.placements_from,
            codec.placements_to(JOB.placements),
            JOB.placements,
            "placements",
        ),
        (history.page_from, history.page_to(HISTORY), HISTORY, "entries"),
    ],
    ids=["settings", "names", "audit", "view", "placements", "history"],
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
    shown, asked = GiveView("n", "j", 1, view), TakeShare("n", "j", 1, attempt, 0, 2)
    for order, name in ((shown, "view"), (asked, "attempt")):
        ((kind, body),) = json.loads(values.order_bytes(order)).items()
        later = added(body) | {name: added(body[name])}
        assert values.order_of(kind, later) == order
    body = added({"attempt": 1, "parts": [added(asdict(part))], "missed": False})
    assert values.parse_body(values.SayParts, b"", body) == values.SayParts(1, (part,), False)
    say = values.Say(True, 1, None, [], [2], False, False, {"loss": 0.5})
    later = added(worker_messages.parse(values.line("say", say))[1])
    assert values.parse_body(values.Say, b"", later) == say
    wants = sharing.wants_line(1, [sharing.Want(1, "lock", "gpu")], ["lr"])
    body = worker_messages.parse(wants)[1]
    assert sharing.wants_from(added(body) | {"wants": [added(body["wants"][0])]}).wants


def test_a_snapshot_of_a_newer_agent_is_read() -> None:
    ended, parts = Exit(ExitKind.DONE), {1: (Part("k", 5, "d"),)}
    worker = WorkerFacts("j", 1, WorkerPhase.GONE, parts=parts, exit=ended)
    facts = NodeFacts("n", Resources(cpu=1.0), (worker,))
    later = added(values.facts_bytes(facts))
    (said,) = later["workers"]
    said["parts"]["1"] = [added(part) for part in said["parts"]["1"]]
    later["workers"] = [added(said) | {"exit": added(said["exit"])}]
    later["capacity"] = added(later["capacity"])
    assert values.facts_from(json.dumps(later).encode()) == facts


def test_an_entry_of_a_kind_that_is_not_known_is_kept_when_the_journal_is_written_anew(
    tmp_path: Path,
) -> None:
    newer = {"kind": "danced", "key": ["job", 1], NEWER: [1, {"a": None}]}
    entries: list[Entry] = [TermSeen(3), Forgotten(Key("job", 1))]
    (tmp_path / NAME).write_bytes(written([[entries[0], newer], [entries[1]]], b"8 bytes."))
    journal, found = Journal.open(tmp_path)
    assert (found.entries, found.unknown, found.cut_bytes) == (entries, [newer], 0)
    journal.compact(entries)
    journal.append([TermSeen(4)])
    journal.close()
    again = recovered(tmp_path / NAME, (tmp_path / NAME).read_bytes())
    assert (again.entries, again.unknown) == ([*entries, TermSeen(4)], [newer])


def test_an_order_is_spelled_in_the_journal_as_on_the_wire() -> None:
    probe = Probe(ProbeKind.EXEC, command=("true",), within_s=3.0)
    order = replace(sample(StartWorker), ready=probe, live=None, secrets={})
    ((_, body),) = json.loads(values.order_bytes(order)).items()
    spelled = json.loads(json.dumps(encode(Accepted(order, Slots()))))["order"]
    assert spelled == body


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
    serving._write(cluster, {"g": serving.GatewayAddress("127.0.0.1:1")})
    path = serving._path(cluster)
    found = json.loads(path.read_text())
    found["gateways"]["g"][NEWER] = 1
    path.write_text(json.dumps(added(found)))
    assert serving.places(cluster) == {"g": serving.GatewayAddress("127.0.0.1:1")}


def test_a_key_that_a_person_wrote_wrongly_is_still_a_mistake() -> None:
    text = "name: train\ncommand: [python, train.py]\nresources: {memry: 1GiB}\n"
    with pytest.raises(Usage, match="memory"):
        jobfile.parse(text, "job.yaml")

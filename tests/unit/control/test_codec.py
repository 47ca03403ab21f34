"""Facts as bytes and back: the same value, one spelling, nothing guessed, room for ten thousand."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.control.decide.facts import (
    Attempt,
    Checkpoint,
    CheckpointRecovery,
    Failure,
    Halt,
    Intent,
    JobRecord,
    Phase,
    Placement,
    QueueQuota,
    RecordedStatus,
    Setting,
    TriggerState,
    Unreadable,
    View,
)
from holdfast.control.decide.spec import (
    CheckpointPolicy,
    JobSpec,
    Mode,
    Resources,
    RestartPolicy,
    Trigger,
    TriggerStart,
)
from holdfast.control.store import codec
from holdfast.control.store.codec import PLACEMENTS_PER_NODE
from holdfast.wire.errors import Corrupt, Usage
from holdfast.wire.limits import VALUE_BYTES_MAX
from holdfast.wire.probes import Probe, ProbeKind
from holdfast.wire.triggers import OffsetRange, TriggeredRange

SPEC = JobSpec(
    "train",
    ("python", "train.py", "--naïve"),
    bundle="b" * 64,
    lanes=8,
    workers_min=2,
    workers_max=4,
    resources=Resources(1.5, 2**33, 1),
    mode=Mode.LOCAL,
    checkpoint=CheckpointPolicy(10, None, 2),
    restart=RestartPolicy(5, 0.1, 3.0, 60.0),
    settings={"lr": "0.1", "ß": ""},
    deadline_s=1.7e9,
    silence_s=90.0,
    ports={"http": 8080, "admin": 0},
    ready=Probe(ProbeKind.HTTP, "http", "/healthz", every_s=1.0, within_s=30.0),
    env={"STAGE": "test"},
    secrets={"TOKEN": "hub-token"},
    requirements=("numpy==2.1", "-r more.txt"),
    live=Probe(ProbeKind.EXEC, command=("true", "{port.admin}"), failures=5),
    on=Trigger("orders", 10, 2.5, "value.a > 1", TriggerStart.LATEST, 3),
    triggered=TriggeredRange("etl", 2, "orders", (OffsetRange(0, 5, 9),), "value.a > 1"),
)
JOB = JobRecord(
    spec=SPEC,
    submitted_s=1_763_000_000.123,
    status=RecordedStatus(Phase.GROWING, "there is room", 1_763_000_001.0),
    intent=Intent.PAUSE,
    workers_wanted=3,
    next_worker=7,
    placements=(Placement(4, "a", True, 0.1), Placement(6, "b", False, 1_763_000_000.2, 2)),
    view=View(3, {4: (0, 1, 2, 5), 6: (3, 4, 6, 7)}, 40),
    attempt=Attempt(2, 60, 3, 1_763_000_002.5),
    unreadable=(Unreadable(Checkpoint(50, "m/50", 2, 2.0), "a hole"),),
    recovery=CheckpointRecovery.AGAIN,
    checkpoints=(Checkpoint(9, "m/9", 1, 1.0), Checkpoint(40, "m/40", 2, 2.0)),
    checkpoint_asked=True,
    settings=(Setting("lr", "0.01", 50), Setting("lr", "0.02", 55)),
    failures=(Failure(2, "Traceback …\n  ValueError: 'x'", 3.0, 12),),
    finished_by=4,
    finished_step=80,
    attempts=2,
    attempts_missed=1,
    abandoned_s=7.0,
    admitted_s=8.0,
    waited_s=9.5,
    revision=2,
    before=JobSpec("train", ("old",)),
    before_revision=1,
    updated_s=10.5,
    halted=Halt(2, "worker 6 was not ready within 30s"),
    trigger=TriggerState("orders", "i1", (5, 0, 9), 2.5, 3, 1, 7),
)


def there_and_back(job: JobRecord) -> JobRecord:
    """Through bytes, as a restarted coordinator would read it."""
    wanted = codec.desired_spec_from(
        "/w", json.loads(json.dumps(codec.desired_spec_to(codec.desired_spec_of(job, "s"))))
    )
    pages = codec.pages_of(job.placements)
    return codec.job_of(
        wanted,
        codec.state_from("/s", codec.state_to(codec.state_of(job))),
        view=codec.view_from("/v", codec.view_to(job.view)) if job.view else None,
        placements=[
            placement
            for page in pages.values()
            for placement in codec.placements_from("/p", codec.placements_to(page))
        ],
        checkpoints=[codec.checkpoint_from("/c", codec.checkpoint_to(c)) for c in job.checkpoints],
        settings=codec.settings_from("/t", codec.settings_to(job.settings)),
    )


def test_a_job_comes_back_as_it_was() -> None:
    assert there_and_back(JOB) == JOB
    plain = JobRecord(JobSpec("x", ("true",)), 0.0, RecordedStatus(Phase.QUEUED, "", 0.0))
    assert there_and_back(plain) == plain


def test_every_field_of_a_job_is_kept_somewhere() -> None:
    default = JobRecord(JobSpec("x", ("true",)), 0.0, RecordedStatus(Phase.QUEUED, "", 0.0))
    for field in fields(JobRecord):
        changed = replace(default, **{field.name: getattr(JOB, field.name)})
        assert changed != default, f"the sample job does not vary {field.name}"
        assert there_and_back(changed) == changed, field.name


def test_a_value_has_one_spelling() -> None:
    turned = replace(SPEC, settings=dict(reversed(list(SPEC.settings.items()))))
    for wanted in (
        codec.desired_spec_of(JOB, "s"),
        codec.desired_spec_of(replace(JOB, spec=turned), "s"),
    ):
        text = json.dumps(codec.desired_spec_to(wanted), sort_keys=True)
        assert text == json.dumps(
            codec.desired_spec_to(codec.desired_spec_of(JOB, "s")), sort_keys=True
        )
    assert codec.view_to(View(1, {2: (1,), 1: (0,)})) == codec.view_to(View(1, {1: (0,), 2: (1,)}))


def test_a_queue_and_names_come_back() -> None:
    for queue in (
        QueueQuota("a", Resources(1, 2, 3)),
        QueueQuota("a", Resources(), Resources(2.0)),
    ):
        assert codec.queue_from("/q", codec.queue_to(queue)) == queue
    assert codec.names_from("/d", codec.names_to({"b", "a"})) == {"a", "b"}


@given(
    st.dictionaries(
        st.integers(1, 50), st.sets(st.integers(0, 200), min_size=1).map(sorted), max_size=6
    )
)
def test_the_lanes_of_a_view_come_back_whatever_their_pieces(lanes: dict[int, list[int]]) -> None:
    view = View(2, {worker: tuple(held) for worker, held in lanes.items()})
    assert codec.view_from("/v", codec.view_to(view)) == view


def _state(**changes: object) -> bytes:
    plain = json.loads(codec.state_to(codec.state_of(JOB)))
    return json.dumps(plain | changes).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        _state(format=2),
        _state(next_worker="7"),
        _state(next_worker=True),
        _state(status=None),
        _state(status={"phase": "dancing", "reason": "", "since_s": 0}),
        _state(status={"phase": "queued", "reason": ""}),
        _state(failures={}),
        _state(failures=[1]),
    ],
)
def test_what_is_not_understood_is_refused_with_its_path(data: bytes) -> None:
    with pytest.raises(Corrupt, match="/jobs/train/state") as corrupt:
        codec.state_from("/jobs/train/state", data)
    assert corrupt.value.why and corrupt.value.fix


@pytest.mark.parametrize(
    "body",
    [
        {"number": 1, "lanes": {"1": [0]}, "restore_step": None},
        {"number": 1, "lanes": {"1": [3, 3]}, "restore_step": None},
        {"number": 1, "lanes": {"x": [0, 1]}, "restore_step": None},
        {"number": 1, "lanes": [], "restore_step": None},
        {"number": 1, "lanes": {}},
    ],
)
def test_a_view_that_is_not_one_is_refused(body: dict[str, object]) -> None:
    with pytest.raises(Corrupt):
        codec.view_from("/v", json.dumps({"format": 1, **body}).encode())


@pytest.mark.parametrize("rows", [3, [1], [[1, "a", False]], [[1, 2, False, 0.0]]])
def test_placements_that_are_none_are_refused(rows: object) -> None:
    with pytest.raises(Corrupt):
        codec.placements_from("/p", json.dumps({"format": 1, "placements": rows}).encode())


def test_a_number_that_is_none_is_not_written() -> None:
    with pytest.raises(Usage):
        codec.placements_to([Placement(1, "a", since_s=float("nan"))])


def test_a_field_that_an_older_version_did_not_know_has_its_default() -> None:
    plain = json.loads(codec.state_to(codec.state_of(JOB)))
    del plain["waited_s"]
    state = codec.state_from("/s", json.dumps(plain).encode())
    assert state == replace(codec.state_of(JOB), waited_s=0.0)


def test_a_job_of_ten_thousand_workers_fits_and_a_change_of_one_writes_little() -> None:
    node = "rack-17-machine-{:05}.cluster.example.org"
    placements = [
        Placement(n, node.format(n % 2_500), False, 1_763_177_749.123456) for n in range(1, 10_001)
    ]
    view = View(4_000, {n: (2 * n, 2 * n + 1) for n in range(10_000)}, 1_000_000)
    pages = codec.pages_of(placements)
    largest = max(len(codec.placements_to(page)) for page in pages.values())
    assert len(pages) == 10_000 // PLACEMENTS_PER_NODE + 1
    assert largest < 32 * 1024
    assert len(codec.view_to(view)) < VALUE_BYTES_MAX
    assert codec.view_from("/v", codec.view_to(view)) == view

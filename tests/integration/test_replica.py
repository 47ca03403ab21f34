"""A replica as a process: it loads what the plan says, and answers with it."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from holdfast.coordination import connect
from holdfast.coordination.nodes import Znode
from holdfast.coordination.waits import Wake
from holdfast.serve.records import Load
from holdfast.serve.replica.following import ServiceReader
from tests.contract.expiring import expire
from tests.integration.replica_stage import ReplicaStage
from tests.waiting import eventually


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[ReplicaStage]:
    made = ReplicaStage(tmp_path)
    try:
        yield made
    finally:
        made.close()


def test_a_replica_answers_with_the_stable_version_and_says_who_it_is(stage: ReplicaStage) -> None:
    one = stage.publish_times(2.0)
    stage.hold(one)
    replica = stage.start(worker=7)
    replica.await_ready()
    said = replica.infer([1, 2, 3, 4])
    assert said.status == 200
    assert said.json["outputs"][0]["data"] == [2, 4, 6, 8]
    assert said.json["model_version"] == "1"
    assert said.headers["x-holdfast-version"] == "1"
    assert said.headers["x-holdfast-variant"] == "direct"
    assert said.headers["x-holdfast-replica"] == "7"
    assert said.headers["x-holdfast-region"] == "north"
    shown = eventually(lambda: stage.shown().get(7), "the replica is seen")
    assert (shown.http_port, shown.grpc_port) == (replica.http_port, replica.grpc_port)
    assert shown.region == "north"
    assert shown.node == "n1"
    eventually(lambda: stage.shown()[7].plan == stage.plan.number, "it follows the plan")


def test_versions_live_side_by_side_and_requests_choose(stage: ReplicaStage) -> None:
    one, two = stage.publish_times(2.0), stage.publish_times(3.0)
    stage.hold(one, two)
    replica = stage.start()
    stage.await_state(1, two)
    assert replica.infer([1, 1, 1, 1]).json["outputs"][0]["data"] == [2] * 4
    chosen = replica.infer([1, 1, 1, 1], x_holdfast_version="2", x_holdfast_variant="canary")
    assert chosen.json["outputs"][0]["data"] == [3] * 4
    assert chosen.headers["x-holdfast-variant"] == "canary"
    path = "/v2/models/digits/versions/2/infer"
    assert (
        replica.infer([1, 1, 1, 1], path, x_holdfast_version="1").headers["x-holdfast-version"]
        == "2"
    )
    elsewhere = replica.infer([1, 1, 1, 1], x_holdfast_version="9")
    assert elsewhere.status == 503
    assert elsewhere.headers["x-holdfast-not-here"] == "1"
    assert "retry-after" in elsewhere.headers
    assert replica.infer([1] * 4, "/v2/models/digits/versions/9/infer").status == 404


def test_what_a_replica_is_to_hold_is_read_once_for_each_change(
    stage: ReplicaStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(stage.plane.address()) as session:
        asked: list[tuple[list[str], bool]] = []
        read_all = session.nodes.read_all

        def counted(
            wanted: Sequence[tuple[str, Wake | None]], *, fresh: bool
        ) -> list[Znode | None]:
            asked.append(([path.rpartition("/")[2] for path, _ in wanted], fresh))
            return read_all(wanted, fresh=fresh)

        monkeypatch.setattr(session.nodes, "read_all", counted)
        rung = threading.Event()
        wanted = ServiceReader(session, "digits")
        assert wanted.read(rung.set) == (stage.service, None)
        assert asked == [(["digits", "plan"], True)]
        plan = stage.hold(1)
        assert rung.wait(60)
        asked.clear()
        assert wanted.read(rung.set).plan == plan
        assert wanted.read(rung.set).plan == plan
        assert asked == [(["plan"], False)]
        asked.clear()
        expire(session)
        stage.change(target="other")
        assert wanted.read(rung.set) == (stage.service, plan)
        assert asked == [(["digits", "plan"], True)]


def test_the_threads_of_the_plane_let_those_go_first_that_answer(stage: ReplicaStage) -> None:
    stage.hold(stage.publish_times(2.0))
    replica = stage.start()
    replica.await_ready()
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, replica.pid) == usual

    def behind() -> int:
        threads = [int(task.name) for task in Path(f"/proc/{replica.pid}/task").iterdir()]
        return sum(os.getpriority(os.PRIO_PROCESS, one) > usual for one in threads)

    # One loads, one shows; the session has its own, and one follows the plan.
    assert behind() > 3


def test_replicas_of_one_machine_try_a_new_version_once_and_each_loads_it(
    stage: ReplicaStage, tmp_path: Path
) -> None:
    told = tmp_path / "told"
    one = stage.publish_times(2.0)
    # Slow enough that both have heard of it before the first trial is over.
    code = f"""
import os, time
time.sleep(0.5)
with open({str(told)!r}, "a") as file:
    print(os.getpid(), file=file)
"""
    two = stage.publish_times(3.0, before=code)
    stage.hold(one)
    replicas = [stage.start(worker=number) for number in (1, 2)]
    for replica in replicas:
        replica.await_ready()
    stage.hold(one, two)
    for replica in replicas:
        stage.await_state(replica.worker, two)
    loaded = [int(line) for line in told.read_text().splitlines()]
    assert len(loaded) == 3
    assert {replica.pid for replica in replicas} < set(loaded), "each has loaded it itself, too"
    for replica in replicas:
        answer = replica.infer([1] * 4, x_holdfast_version=str(two))
        assert answer.json["outputs"][0]["data"] == [3] * 4


def test_what_is_not_held_any_more_is_unloaded(stage: ReplicaStage) -> None:
    one, two = stage.publish_times(2.0), stage.publish_times(3.0)
    stage.hold(one)
    replica = stage.start()
    replica.await_ready()
    stage.hold(two, one, stable=one)
    stage.await_state(1, two)
    stage.hold(two)
    eventually(lambda: stage.states(1) == {two: Load.READY}, "only the second is held")
    assert replica.infer([1] * 4).headers["x-holdfast-version"] == "2"
    eventually(
        lambda: replica.infer([1] * 4, x_holdfast_version="1").status == 503,
        "those who chose the first before have had their time",
    )


def test_the_whole_surface_answers_and_wrong_requests_say_what_was_wrong(
    stage: ReplicaStage,
) -> None:
    stage.change(limits=stage.service.limits.__class__(body_bytes_max=10_000))
    stage.hold(stage.publish_times(2.0))
    replica = stage.start()
    replica.await_ready()
    assert replica.get("/v2/health/live").json == {"live": True}
    assert replica.get("/v2").json["name"] == "holdfast"
    described = replica.get("/v2/models/digits").json
    assert described["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
    assert described["versions"] == ["1"]
    assert replica.get("/v2/models/digits/ready").status == 200
    assert replica.get("/v2/models/digits/versions/1/ready").status == 200
    assert replica.get("/v2/models/digits/versions/2/ready").status == 404
    assert replica.predict([[1, 2, 3, 4]]).json == {"y": [[2, 4, 6, 8]]}
    row = replica.call("POST", "/predict/digits", b"[1, 2, 3, 4]")
    assert row.json == {"y": [2, 4, 6, 8]}
    assert replica.get("/v2/models/other").status == 404
    assert replica.get("/nowhere").status == 404
    wrong_method = replica.get("/v2/models/digits/infer")
    assert (wrong_method.status, wrong_method.headers["allow"]) == (405, "POST")
    for body, words in (
        (b"{", "not an inference request"),
        (b'{"inputs": []}', "'x' is missing"),
        (
            json.dumps(
                {"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}]}
            ).encode(),
            "shape [1, 3]",
        ),
    ):
        said = replica.call("POST", "/v2/models/digits/infer", body)
        assert said.status == 400, said
        assert words in said.json["error"]
    for large in (b" " * 20_000, iter([b" " * 6_000] * 4)):  # announced, and in chunks
        assert replica.call("POST", "/predict/digits", large).status == 413
    assert replica.call("POST", "/predict/digits", iter([b"[1, 2,", b"3, 4]"])).json == row.json
    assert replica.get("/openapi.json").json["openapi"] == "3.1.0"
    stats = replica.get("/holdfast/stats").json
    assert stats["versions"]["1"]["requests"] == 3
    assert (
        'holdfast_requests_total{service="digits",version="1"} 3'
        in replica.get("/metrics").body.decode()
    )

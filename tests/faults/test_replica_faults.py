"""What must not take a replica down, or its good version: bad versions, a plane that is away."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import threading
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from holdfast.serve.records import Limits, Load
from holdfast.wire import worker_messages
from tests.answers import HttpAnswer
from tests.integration.replica_stage import ReplicaProcess, ReplicaStage, gone, infer_body
from tests.waiting import eventually

# Code that does its harm when it is imported, and what is then said of the version.
HARM = {
    "raises": ('raise RuntimeError("no such table")', "no such table"),
    "does not compile": ("def broken(:", "SyntaxError"),
    "exits": ("import os; os._exit(3)", "status 3"),
    "exits politely": ("import sys; sys.exit(4)", "SystemExit"),
    "crashes": ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
}


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[ReplicaStage]:
    made = ReplicaStage(tmp_path)
    try:
        yield made
    finally:
        made.close()


class Asking:
    """Requests, one after the other, on a thread; whatever is not as it should be is kept."""

    def __init__(self, replica: ReplicaProcess, factors: dict[str, float]) -> None:
        self._replica = replica
        self._factors = factors
        self._stop = threading.Event()
        self.answered = 0
        self.wrong: list[object] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                said = self._replica.infer([1, 2, 3, 4])
            except OSError as error:
                self.wrong.append(error)
                continue
            self.answered += 1
            if not self._is_right(said):
                self.wrong.append(said)

    def _is_right(self, said: HttpAnswer) -> bool:
        if said.status != 200:
            return False
        factor = self._factors[said.headers["x-holdfast-version"]]
        if said.json["model_version"] != said.headers["x-holdfast-version"]:
            return False
        return bool(said.json["outputs"][0]["data"] == [factor * x for x in (1, 2, 3, 4)])

    def end(self) -> None:
        self._stop.set()
        self._thread.join()


def test_bad_versions_fail_with_their_reason_and_the_good_one_goes_on(stage: ReplicaStage) -> None:
    good = stage.publish_times(2.0)
    stage.hold(good)
    replica = stage.start()
    replica.await_ready()
    bad = {stage.publish_times(9.0, before=code): words for code, words in HARM.values()}
    bad[stage.publish_times(3.0, claimed=4.0)] = "does not give what its example says"
    load = Asking(replica, {str(good): 2.0})
    stage.hold(good, *bad)
    for version in bad:
        stage.await_state(1, version, Load.FAILED)
    load.end()
    assert load.answered and not load.wrong
    for version, words in bad.items():
        assert words in stage.reason(1, version)
    assert replica.alive and replica.ready()
    assert stage.states(1)[good] is Load.READY


def test_a_first_version_that_ends_the_process_is_not_tried_for_ever(stage: ReplicaStage) -> None:
    bad = stage.publish_times(9.0, before="import os; os._exit(3)")
    stage.hold(bad)
    assert stage.start(worker=1).wait() == 3
    second = stage.start(worker=2)
    stage.await_state(2, bad, Load.FAILED)
    assert "status 3" in stage.reason(2, bad)
    # And it is there for the version that comes next.
    good = stage.publish_times(2.0)
    stage.hold(good, bad)
    second.await_ready()
    assert second.infer([1, 1, 1, 1]).headers["x-holdfast-version"] == str(good)


def test_a_version_that_never_finishes_loading_keeps_nobody_from_the_next(
    stage: ReplicaStage,
) -> None:
    hangs = "import time; time.sleep(3600)"
    good, first, second = (
        stage.publish_times(2.0),
        stage.publish_times(8.0, before=hangs),
        stage.publish_times(3.0),
    )
    stage.hold(good)
    replica = stage.start(worker=1)
    replica.await_ready()
    stage.hold(good, first)
    eventually(lambda: stage.states(1).get(first) is Load.LOADING, "it is being tried")
    stage.hold(good, second)
    stage.await_state(1, second)
    # With nothing to lose it is loaded without a trial: the process ends, and the next one can.
    stage.hold(first)
    alone = stage.start(worker=2, node="n2")
    eventually(lambda: stage.states(2).get(first) is Load.LOADING, "it is being loaded")
    eventually(lambda: any((alone.cache / "loading").iterdir()), "it is being loaded there")
    stage.hold(second)
    assert alone.wait() != 0
    third = stage.start(worker=3, node="n2")
    third.await_ready()


def test_a_failed_version_is_tried_again_when_users_ask_anew(
    stage: ReplicaStage, tmp_path: Path
) -> None:
    good = stage.publish_times(2.0)
    switch = tmp_path / "mended"
    code = f"import os\nif not os.path.exists({str(switch)!r}):\n    raise RuntimeError('broken')"
    moody = stage.publish_times(3.0, before=code)
    stage.hold(good, moody)
    stage.start()
    stage.await_state(1, moody, Load.FAILED)
    switch.touch()
    stage.hold(good, moody, version_revision=1)
    stage.await_state(1, moody)


def test_versions_come_and_go_under_load_without_a_failed_or_wrong_answer(
    stage: ReplicaStage,
) -> None:
    numbers = [stage.publish_times(float(factor)) for factor in range(2, 8)]
    stage.hold(numbers[0])
    replica = stage.start()
    replica.await_ready()
    loads = [Asking(replica, {str(n): float(n + 1) for n in numbers}) for _ in range(3)]
    for before, after in pairwise(numbers):
        stage.hold(before, after)
        stage.await_state(1, after)
        stage.hold(after, before)
        stage.hold(after)
    eventually(lambda: stage.states(1) == {numbers[-1]: Load.READY}, "only the last one is held")
    for load in loads:
        load.end()
    assert [load.wrong for load in loads] == [[], [], []]
    assert all(load.answered for load in loads)
    assert replica.infer([1, 1, 1, 1]).headers["x-holdfast-version"] == str(numbers[-1])


def test_a_replica_serves_on_while_the_plane_is_away_and_is_back_after_it(
    stage: ReplicaStage,
) -> None:
    one, two = stage.publish_times(2.0), stage.publish_times(3.0)
    stage.hold(one)
    replica = stage.start()
    replica.await_ready()
    eventually(lambda: 1 in stage.shown(), "the replica is seen")
    load = Asking(replica, {str(one): 2.0, str(two): 3.0})
    server = stage.plane.pid()
    os.kill(server, signal.SIGSTOP)
    try:
        before = load.answered
        eventually(lambda: load.answered > before + 50, "it answers while the plane is paused")
        assert replica.ready()
    finally:
        os.kill(server, signal.SIGCONT)
    stage.plane.disturb("kill the server")
    stage.hold(one, two)
    stage.await_state(1, two)
    load.end()
    assert not load.wrong


def test_a_replica_that_is_told_to_leave_answers_what_it_has_begun(stage: ReplicaStage) -> None:
    slow = "\n_inner = predict\n\ndef predict(inputs):\n    import time; time.sleep(1.0)\n"
    number = stage.publish_times(2.0, before=slow + "    return _inner(inputs)")
    stage.hold(number)
    replica = stage.start()
    replica.await_ready()
    answers: list[HttpAnswer] = []
    asking = threading.Thread(target=lambda: answers.append(replica.infer([1, 2, 3, 4])))
    asking.start()
    eventually(lambda: replica.get("/holdfast/stats").json["running"], "it computes")
    replica.terminate()
    eventually(lambda: not replica.ready(), "it is not ready any more")
    assert replica.get("/v2/health/live").status == 200
    eventually(lambda: stage.shown()[1].draining, "others see that it drains")
    asking.join()
    assert answers[0].json["outputs"][0]["data"] == [2, 4, 6, 8]
    assert replica.wait() == 0
    eventually(lambda: 1 not in stage.shown(), "it has left the plane")
    assert (replica.folder / worker_messages.WORD_NAME).read_text() == worker_messages.LEFT


def test_a_request_whose_client_has_hung_up_is_not_computed(stage: ReplicaStage) -> None:
    slow = "\n_inner = predict\n\ndef predict(inputs):\n    import time; time.sleep(0.5)\n"
    number = stage.publish_times(2.0, before=slow + "    return _inner(inputs)")
    stage.change(limits=Limits(batch_max=1))
    stage.hold(number)
    replica = stage.start()
    replica.await_ready()
    computed = threading.Thread(target=lambda: replica.infer([1, 2, 3, 4]))
    computed.start()
    eventually(lambda: replica.get("/holdfast/stats").json["running"], "it computes")
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            line = http.client.HTTPConnection("127.0.0.1", replica.http_port)
            stack.callback(line.close)
            line.request("POST", "/v2/models/digits/infer", infer_body([1, 2, 3, 4]))
        eventually(lambda: replica.get("/holdfast/stats").json["waiting"] == 20, "they wait")
    computed.join()
    eventually(lambda: replica.get("/holdfast/stats").json["waiting"] == 0, "they are dropped")
    assert replica.infer([1, 2, 3, 4]).status == 200
    counts = replica.get("/holdfast/stats").json["versions"][str(number)]
    assert counts["requests"] <= 4, "those that hung up were not computed"


def test_a_killed_replica_leaves_no_process_and_the_next_one_takes_over(
    stage: ReplicaStage,
) -> None:
    one, two = stage.publish_times(2.0), stage.publish_times(3.0)
    stage.hold(one, two)
    first = stage.start(worker=1)
    stage.await_state(1, two)
    children = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()
    assert children, "it has a prefork server"
    first.kill()
    for child in children:
        eventually(partial(gone, int(child)), "the prefork server is gone too")
    second = stage.start(worker=2)
    stage.await_state(2, two)
    assert second.infer([1, 1, 1, 1], x_holdfast_version=str(two)).status == 200
    eventually(lambda: 1 not in stage.shown(), "the session of the killed one has ended")


def test_a_computation_that_is_stuck_makes_the_replica_say_so(stage: ReplicaStage) -> None:
    stage.change(limits=Limits(timeout_s=0.2, queue_max=1))
    stuck = "\n_inner = predict\n\ndef predict(inputs):\n    import time\n"
    stuck += "    time.sleep(3600.0 if inputs['x'][0, 0] < 0 else 0.01)\n    return _inner(inputs)"
    number = stage.publish_times(2.0, before=stuck)
    stage.hold(number)
    replica = stage.start()
    replica.await_ready()
    late = replica.infer([-1, 0, 0, 0])
    assert late.status == 504
    waiting = threading.Thread(target=lambda: replica.infer([1, 0, 0, 0]))
    waiting.start()
    full = eventually(
        lambda: said if (said := replica.infer([1, 0, 0, 0])).status == 503 else None,
        "the queue is full",
    )
    assert "retry-after" in full.headers
    waiting.join()
    eventually(lambda: not replica.ready(), "a stuck computation is not ready")
    assert replica.get("/v2/health/live").status == 200
    counts = replica.get("/holdfast/stats").json
    assert counts["refused"] >= 1
    assert counts["versions"][str(number)]["errors"] >= 1

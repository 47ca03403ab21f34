"""The Python client without a cluster: what it makes of jobs, answers, futures and options."""

from __future__ import annotations

import http.server
import inspect
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from concurrent.futures import wait as wait_for
from dataclasses import replace
from pathlib import Path

import numpy
import pytest

import holdfast
from holdfast import client as public
from holdfast.client import AsyncClient, AsyncJob, AsyncService, Client, Job, Service, job_waits
from holdfast.client.futures import Futures
from holdfast.client.job_status import status_of
from holdfast.client.predicting import Gateways, body_of
from holdfast.client.serving import ServeOptions, ServeRequest, changes_of
from holdfast.client.submitting import Changes, draft_of, draft_of_script
from holdfast.client.waiting import Poll
from holdfast.cluster import create
from holdfast.control.decide import facts
from holdfast.control.decide.facts import Checkpoint, Phase, Placement, RecordedStatus
from holdfast.control.decide.spec import JobSpec
from holdfast.launch.ending import down
from holdfast.wire.errors import (
    Cancelled,
    Full,
    HoldfastError,
    JobFailed,
    Missing,
    TerminalError,
    TimedOut,
    Unavailable,
    Usage,
)
from holdfast.wire.reports import WorkerFacts, WorkerPhase
from tests.unit.cli.running import environment
from tests.waiting import eventually

# --- the public face ------------------------------------------------------------------------------


def test_importing_holdfast_loads_nothing_but_itself() -> None:
    code = (
        "import sys, holdfast; loaded = [n for n in sys.modules if n.startswith('holdfast.')];"
        "print(loaded, holdfast.__version__)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment())
    assert done.stdout.strip() == f"[] {holdfast.__version__}"


def test_every_public_name_is_there_and_no_other_is() -> None:
    assert all(getattr(public, name) is not None for name in public.__all__)
    assert (holdfast.Client, holdfast.AsyncClient) == (Client, AsyncClient)
    with pytest.raises(AttributeError, match="Cleint"):
        _ = holdfast.Cleint
    with pytest.raises(AttributeError, match="Cleint"):
        _ = public.Cleint


@pytest.mark.parametrize(
    ("one", "other", "without"),
    [
        # What only tells what the control plane holds, or is for a thread, has no other form.
        (
            Client,
            AsyncClient,
            {"down", "ensure_served", "found", "submit_draft", "update_draft"},
        ),
        (Job, AsyncJob, {"changes", "facts", "found", "future", "log_stream"}),
        (
            *(Service, AsyncService),
            {"key", "predict_async", "observe"},
        ),
    ],
)
def test_the_async_form_has_every_verb(one: type, other: type, without: set[str]) -> None:
    def verbs(of: type) -> set[str]:
        return {name for name, _ in inspect.getmembers(of) if not name.startswith("_")}

    assert verbs(one) - verbs(other) == without
    assert verbs(other) - verbs(one) <= {"connected"}
    awaited = [getattr(other, name) for name in verbs(other)]
    assert all(
        inspect.iscoroutinefunction(verb) or inspect.isasyncgenfunction(verb) for verb in awaited
    )


def test_an_address_is_refused_with_the_way_to_a_folder() -> None:
    with pytest.raises(Usage, match="holdfast join"):
        Client("zk://10.0.0.1:2181")


# --- jobs -----------------------------------------------------------------------------------------

JOB = facts.JobRecord(
    JobSpec("it", ("python", "it.py"), workers_min=1, workers_max=4),
    submitted_s=1.0,
    status=RecordedStatus(Phase.RUNNING, "on 2 workers", 2.0),
    placements=(Placement(1, "n1"), Placement(2, "n2")),
    checkpoints=(Checkpoint(100, "m", 1, 3.0),),
)


def test_a_status_is_the_job_in_short() -> None:
    working = {1: ("n1", WorkerFacts("it", 1, WorkerPhase.RUNNING, step=120))}
    status = status_of(JOB, working)
    assert (status.phase, status.step, status.committed) == ("running", 120, 100)
    assert (status.workers, status.workers_wanted, status.ended) == (2, 4, False)
    fresh = status_of(replace(JOB, checkpoints=()), {})
    assert (fresh.step, fresh.committed) == (None, None)


def ended(phase: Phase, reason: str) -> facts.JobRecord:
    return replace(JOB, status=RecordedStatus(phase, reason, 3.0))


def test_a_job_that_did_not_succeed_is_an_error_with_its_cause() -> None:
    assert job_waits.ended(ended(Phase.SUCCEEDED, "done")).succeeded
    told = 'Traceback (most recent call last):\n  File "a.py", line 1\nKeyError: 7'
    with pytest.raises(JobFailed, match="job it has failed") as failed:
        job_waits.ended(ended(Phase.FAILED, told))
    assert "KeyError: 7" in failed.value.why
    assert failed.value.story == tuple(told.splitlines())
    with pytest.raises(JobFailed, match="job it was stopped"):
        job_waits.ended(ended(Phase.STOPPED, "its user asked for it"))


FILE = """
name: it
command: python it.py
bundle: .
workers: {min: 2, max: 4}
settings: {lr: 0.1, warmup: 5}
"""


def test_keywords_change_what_a_file_says_and_the_rest_stays(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(FILE)
    draft = draft_of(file, 3, Changes("other", "nightly", 7, {"lr": 0.5}))
    spec = draft.spec
    assert (spec.name, spec.queue, spec.priority) == ("other", "nightly", 7)
    assert spec.settings == {"lr": "0.5", "warmup": "5"}
    assert (spec.bundle, draft.folder, draft.workers) == (".", tmp_path, 3)
    given = draft_of(file, None, Changes(bundle="trainer@3"))
    assert (given.spec.bundle, given.folder, given.workers) == ("trainer@3", Path.cwd(), None)


@pytest.mark.parametrize(
    ("workers", "changes", "said"),
    [
        (5, Changes(), "cannot have 5 workers"),
        (1, Changes(), "cannot have 1 workers"),
        (None, Changes(priority=9_999), "priority of 9999"),
        (None, Changes(name="a b"), "a b"),
    ],
)
def test_what_a_job_cannot_be_is_refused_before_a_cluster_is_asked(
    tmp_path: Path, workers: int | None, changes: Changes, said: str
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(FILE)
    with pytest.raises(Usage, match=said):
        draft_of(file, workers, changes)


def test_a_mapping_has_the_keys_and_the_errors_of_a_job_file() -> None:
    draft = draft_of({"name": "it", "command": ["python", "a b.py"], "lanes": 8}, None, Changes())
    assert (draft.spec.command, draft.spec.lanes) == (("python", "a b.py"), 8)
    with pytest.raises(Usage, match="did you mean `lanes`"):
        draft_of({"name": "it", "command": "x", "lane": 8}, None, Changes())
    with pytest.raises(Missing, match=r"none\.yaml"):
        draft_of("none.yaml", None, Changes())


def test_a_script_is_the_job_that_holdfast_run_would_run(tmp_path: Path) -> None:
    script = tmp_path / "my train.py"
    script.write_text("")
    given = {"lanes": None, "cpu": 0.5, "memory": "1GiB", "checkpoint_every": "100steps"}
    draft = draft_of_script(script, ("--epochs", 3), 3, Changes(queue="q"), given)
    spec = draft.spec
    assert (spec.name, spec.queue, spec.lanes, draft.workers) == ("my-train", "q", 4, 3)
    assert spec.command == ("python", "my train.py", "--epochs", "3")
    assert (spec.resources.cpu, spec.resources.memory_bytes) == (0.5, 1024**3)
    assert (spec.checkpoint.every_steps, spec.bundle, draft.folder) == (100, ".", tmp_path)
    with pytest.raises(Usage, match="cannot share 2 lanes"):
        draft_of_script(script, (), 3, Changes(), {"lanes": 2})


# --- futures --------------------------------------------------------------------------------------


@pytest.fixture
def futures() -> Iterator[Futures]:
    made = Futures()
    yield made
    made.close()


def test_a_future_has_what_comes_or_the_error_of_looking_for_it(futures: Futures) -> None:
    looks = iter([None, 3])
    good = futures.add(Poll(lambda: next(looks), 0.0), lambda found: found + 1)
    bad = futures.add(Poll(raises(TimedOut("too late")), 0.0), str)
    worse = futures.add(Poll(lambda: 1, 0.0), raises(ValueError("of `then`")))
    assert good.result(60.0) == 4
    with pytest.raises(TimedOut):
        bad.result(60.0)
    with pytest.raises(ValueError, match="then"):
        worse.result(60.0)


def raises(error: Exception) -> Callable[..., int]:
    def call(*_: object) -> int:
        raise error

    return call


def test_a_cancelled_future_is_looked_for_no_more_and_who_waits_is_told(futures: Futures) -> None:
    looked: list[float] = []
    one = futures.add(Poll(lambda: looked.append(1.0), 0.0), str)
    other = futures.add(Poll(lambda: True if one.cancelled() else None, 0.0), bool)
    assert one.cancel()
    assert other.result(60.0)
    assert one in wait_for([one], 60.0).done
    with pytest.raises(CancelledError):
        one.result(0.0)
    before = len(looked)
    assert futures.add(Poll(lambda: True, 0.0), bool).result(60.0)
    assert len(looked) == before


def test_what_nobody_will_see_any_more_ends_with_the_client(futures: Futures) -> None:
    one, other = (futures.add(Poll(lambda: None, 0.0), str) for _ in range(2))
    assert other.cancel()
    futures.close()
    futures.close()
    with pytest.raises(Cancelled, match="client is closed"):
        one.result(60.0)
    with pytest.raises(Cancelled, match="client is closed"):
        futures.add(Poll(lambda: 1, 0.0), str)


# --- predictions ----------------------------------------------------------------------------------


class Gateway:
    """A real HTTP server that answers as it is told to."""

    def __init__(self) -> None:
        self.status, self.body, self.pause_s = 200, b'{"y": [2.0]}', 0.0
        self.connections, self.requests = 0, 0
        self.hang_up = False
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                outer.connections += 1
                super().setup()

            def do_POST(self) -> None:
                outer.requests += 1
                self.rfile.read(int(self.headers["content-length"]))
                time.sleep(outer.pause_s)  # pause: the answer comes late
                self.send_response(outer.status)
                self.send_header("content-length", str(len(outer.body)))
                self.send_header("x-holdfast-version", "7")
                self.end_headers()
                self.wfile.write(outer.body)
                self.close_connection = outer.hang_up  # and nobody is told

            def log_message(self, *_: object) -> None:
                return

        class Server(http.server.ThreadingHTTPServer):
            def handle_error(self, *_: object) -> None:
                """Of who does not wait for his answer."""

        self.server = Server(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    made = Gateway()
    yield made
    made.close()


@pytest.fixture
def gateways() -> Iterator[Gateways]:
    made = Gateways()
    yield made
    made.close()


def ask(gateways: Gateways, *addresses: str, timeout_s: float = 60.0) -> int | None:
    answer = gateways.ask(
        lambda _fresh: addresses, "it", "/predict/it", body_of({"x": [1.0]}), {}, timeout_s
    )
    assert answer.outputs == {"y": [2.0]}
    return answer.version


def test_a_connection_is_kept_and_one_that_was_closed_meanwhile_is_replaced(
    gateway: Gateway, gateways: Gateways
) -> None:
    assert [ask(gateways, gateway.address) for _ in range(3)] == [7, 7, 7]
    assert gateway.connections == 1
    gateway.hang_up = True
    for _ in range(3):
        ask(gateways, gateway.address)
    assert gateway.requests == 6, "no request is counted as answered twice"
    assert gateway.connections > 1


def test_a_gateway_that_is_gone_is_passed_over_and_none_left_is_an_error(
    gateway: Gateway, gateways: Gateways
) -> None:
    gone = Gateway()
    gone.close()
    assert ask(gateways, gone.address, gateway.address) == 7
    with pytest.raises(Unavailable, match="does not answer"):
        ask(gateways, gone.address)


@pytest.mark.parametrize(
    ("status", "error"),
    [(400, TerminalError), (401, TerminalError), (429, Full), (503, Full), (504, TimedOut)],
)
def test_what_may_succeed_later_is_told_apart_from_what_may_not(
    gateway: Gateway, gateways: Gateways, status: int, error: type[HoldfastError]
) -> None:
    gateway.status, gateway.body = status, b'{"error": "no\\nfix: do this"}'
    with pytest.raises(error, match=f"it answered {status}") as refused:
        ask(gateways, gateway.address)
    assert refused.value.fix == "do this"


def test_a_service_that_says_nothing_in_time_is_not_asked_twice(
    gateway: Gateway, gateways: Gateways
) -> None:
    gateway.pause_s = 0.5
    with pytest.raises(TimedOut, match="within"):
        ask(gateways, gateway.address, timeout_s=0.05)
    assert gateway.requests == 1


def test_a_closed_client_breaks_what_is_under_way(gateway: Gateway, gateways: Gateways) -> None:
    gateway.pause_s = 2.0
    failed: list[Exception] = []

    def asking() -> None:
        try:
            ask(gateways, gateway.address)
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=asking)
    thread.start()
    eventually(lambda: gateway.requests, "it is asked")
    gateways.close()
    thread.join(60.0)
    assert [type(error) for error in failed] in ([Unavailable], [Cancelled])
    with pytest.raises(Cancelled):
        ask(gateways, gateway.address)


def test_arrays_tensors_and_nested_lists_become_json_and_text_stays_as_it_is() -> None:

    body = body_of({"x": numpy.array([[1.5]]), "t": ("a", b"b"), "n": [numpy.float32(2)]})
    assert json.loads(body) == {"x": [[1.5]], "t": ["a", "b"], "n": [2.0]}
    assert body_of('{"x": 1}') == b'{"x": 1}'


def test_inputs_that_json_has_no_word_for_are_named_before_they_are_sent() -> None:

    with pytest.raises(Usage, match="cannot be written as JSON") as told:
        body_of({"x": numpy.array([[float("nan")]])})
    assert "NaN" in told.value.why and "binary_data_size" in told.value.fix
    for wrong in ({"x": [[1j]]}, {"x": {1, 2}}, {"x": b"\xff"}):
        with pytest.raises(Usage, match="cannot be written as JSON"):
            body_of(wrong)


# --- options of serving ---------------------------------------------------------------------------


def test_options_of_serving_may_be_numbers() -> None:
    given: ServeOptions = {"timeout": 7, "hold": 0.5, "canary": [5, 25.5], "body_max": 2**20}
    found = changes_of(3, {**given, "errors_max": 2, "guard_shift": 0.5})
    assert (found["replicas_min"], found["replicas_max"]) == (3, 3)
    assert found["limits"] == {"timeout_s": 7.0, "body_bytes_max": 2**20}
    assert found["policy"] == {"hold_s": 0.5, "steps": (500, 2_550), "error_rate_max": 0.02}
    assert found["guards"] == {"shift_max": 0.5}


def test_every_option_of_the_command_is_one_of_the_client() -> None:
    from holdfast.cli.serve.command import serve

    own = {"reference", "service", "replicas", "key", "gateway", "region", "gateways"}
    theirs = {"no_wait", "cluster", "as_json"}
    assert set(inspect.signature(serve).parameters) - own - theirs == set(
        ServeOptions.__annotations__
    )
    with pytest.raises(Usage, match="did you mean timeout"):
        changes_of(None, {"time_out": 3})  # type: ignore[typeddict-unknown-key]


def test_where_a_gateway_is_or_how_many_there_are_does_not_change_which_version_is_served() -> None:
    assert not ServeRequest("part", None, {}).says_more
    for more in ({"gateways": 2}, {"gateway": "127.0.0.1:8090"}, {"region": "eu"}, {"key": True}):
        assert ServeRequest("part", None, {}, **more).says_more, more
    assert ServeRequest("part", None, {"limits": {"timeout_s": 7.0}}).says_more


# --- a cluster that is not there any more ---------------------------------------------------------


def test_after_down_and_in_a_forked_child_a_client_says_at_once_what_helps(tmp_path: Path) -> None:
    cluster = create(tmp_path / "cluster")
    try:
        with cluster.session(), Client(cluster.folder) as client:
            assert client.jobs() == {}
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    client.jobs()
                except Usage as error:
                    code = 7 if "in the child" in error.fix else 2
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
            down(cluster)
            with pytest.raises(Unavailable, match="is not up") as refused:
                client.jobs()
            assert (refused.value.fix, refused.value.why) == (
                "holdfast up",
                "it was ended (holdfast down)",
            )
    finally:
        down(cluster)

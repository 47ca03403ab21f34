"""A shell asks for names, as the scripts of `holdfast --show-completion` do it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.control.decide.facts import QueueQuota
from holdfast.control.decide.spec import Resources
from holdfast.models.drafts import VersionDraft
from holdfast.models.records import ModelKind, Signature, TensorSpec
from holdfast.models.registry import Registry
from holdfast.serve.records import ServiceSpec
from holdfast.serve.services import Services
from tests.integration.clusters import Home, holdfast

# For an answer, on a machine with much else to do.
ANSWER_S = 60.0


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """A cluster with one of each, whose names begin with different letters."""
    made = Home(tmp_path_factory.mktemp("completion") / "cluster")
    try:
        made.up()
        made.submit("alpha")
        made.submit("alps")
        with made.control() as control:
            control.put_queue(QueueQuota("delta", Resources(cpu=1.0)))
        with made.cluster.session() as session:
            registry = Registry(session, made.cluster.blobs(), "a test")
            takes = (TensorSpec("x", "FP32", (-1, 2)),)
            registry.publish(
                VersionDraft(
                    "beta", ModelKind.ONNX, Signature(takes, takes), {"model.onnx": b"x"}, "", ""
                )
            )
            Services(session).create(ServiceSpec("gamma", "beta", "1"))
        yield made
    finally:
        made.end()


def completed(home: Home, *words: str, shell: str = "bash", **more: str) -> list[str]:
    """What the shell is offered for the last of these words."""
    line = " ".join(("holdfast", *words))
    asked = {
        "HOLDFAST_COMPLETION_S": str(ANSWER_S),
        "_HOLDFAST_COMPLETE": f"complete_{shell}",
        "HOLDFAST_CLUSTER": str(home.cluster.folder),
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words)),
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        **more,
    }
    done = holdfast(env=asked)
    assert done.stderr == ""
    assert done.returncode == 0
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("why", "al"), ["alpha", "alps"]),
        (("remove", "alpha", "alp"), ["alpha", "alps"]),
        (("logs", "g"), ["gamma"]),
        (("rollback", ""), ["gamma"]),
        (("models", "show", ""), ["beta"]),
        (("drain", ""), ["node-1"]),
        (("queue", "set", "d"), ["default", "delta"]),
    ],
)
def test_names_of_the_cluster_are_completed(
    home: Home, words: tuple[str, ...], names: list[str]
) -> None:
    assert completed(home, *words) == names


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_are_told_the_same(home: Home, shell: str) -> None:
    assert "alps" in " ".join(completed(home, "why", "alp", shell=shell))


def test_the_option_names_the_cluster_that_is_asked(home: Home, tmp_path: Path) -> None:
    folder = str(home.cluster.folder)
    nowhere = str(tmp_path / "nowhere")
    found = completed(home, "why", "--cluster", folder, "alph", HOLDFAST_CLUSTER=nowhere)
    assert found == ["alpha"]


def test_without_a_cluster_nothing_is_completed_and_nothing_said(
    home: Home, tmp_path: Path
) -> None:
    assert completed(home, "why", "", HOLDFAST_CLUSTER=str(tmp_path)) == []


def test_a_cluster_that_does_not_answer_holds_nobody_up(home: Home) -> None:
    """The shell would be blocked for as long as that takes."""
    server = home.process("server")
    os.kill(server.pid, signal.SIGSTOP)
    try:
        began_s = time.monotonic()
        assert completed(home, "why", "al", HOLDFAST_COMPLETION_S="") == []
        assert time.monotonic() - began_s < ANSWER_S
    finally:
        os.kill(server.pid, signal.SIGCONT)

"""Every block says what it is; whoever adds one that nobody runs has to say so here, too."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from holdfast.cli.main import app
from tests.docs.pages import PAGES, ROOT, BadFence, Block, blocks, differs
from tests.docs.reader import Reader

# Of each page: why, and how many blocks.
NOT_RUN: dict[str, dict[str, int]] = {
    "CONTRIBUTING.md": {"a checkout": 1},
    "README.md": {
        "the test has its own installed wheel": 1,
        "a checkout; tests/integration/test_training_demo.py runs the first": 1,
    },
    "docs/gateway.md": {"it stays; tests/integration/test_gateway.py runs it": 1},
    "docs/guarantees.md": {"a checkout, and hours": 1},
    "docs/machines.md": {
        "other machines; tests/integration/test_cluster_join.py and test_standby.py": 1,
        "an ensemble and a bucket": 1,
        "another machine": 2,
        "another machine, and its systemd": 1,
    },
    "docs/models.md": {
        "a line of main; README.md has a whole program": 1,
    },
    "docs/gpu.md": {"one key of a job file": 1},
    "docs/modes.md": {"a part of a job file": 1},
    "docs/preemption.md": {
        "two files, side by side; tests/faults/test_preemption.py plays them": 1,
    },
    "docs/releasing.md": {"a checkout": 1},
    "docs/replicas.md": {"it stays; tests/integration/test_replica.py runs it": 1},
    "docs/scale.md": {"a checkout, and minutes": 1},
    "docs/programs.md": {
        "parts of a job file": 2,
        "nginx and Redis; tests/integration/test_programs.py runs both": 2,
    },
    "docs/topics.md": {
        "it needs a Kafka; tests/integration/test_topics_cluster.py": 1,
        "it needs a cluster, or stays; tests/integration/test_topics_commands.py runs it": 1,
        "it needs a cluster; tests/integration/test_events_engines.py reads the same": 1,
        "it needs a service with a topic; tests/integration/test_prediction_topic.py": 1,
        "it needs the broker; tests/integration/test_topics_clients.py": 1,
        "it needs the broker; tests/integration/test_topics_docs.py runs it": 3,
        "it stays; tests/integration/test_topics_commands.py runs it": 1,
    },
    "docs/triggers.md": {
        "a job file; tests/integration/test_triggers.py runs its like": 1,
        "a started job; tests/integration/test_triggers.py runs its like": 1,
        "it needs records; tests/integration/test_triggers.py runs its like": 1,
        "a handler; tests/integration/test_subscribe.py runs its like": 2,
        "it stays; tests/integration/test_subscribe.py runs its like": 1,
        "a handler with a bucket; tests/integration/test_subscribe.py runs its like": 1,
    },
    "docs/training.md": {
        "JOB is any job": 1,
        "a part of main; run by tests/unit/train_torch/test_data_docs.py": 6,
        "a part of main; tests/gpu runs the like of it": 1,
        "only main; run by tests/unit/train_torch/test_recipes.py": 9,
    },
}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_what_is_not_run_is_listed_here_with_its_reason(path: Path) -> None:
    page = path.relative_to(ROOT).as_posix()
    reasons = Counter(block.skip for block in blocks(path) if block.skip)
    assert reasons == NOT_RUN.get(page, {})


def test_no_page_is_forgotten() -> None:
    named = {path.relative_to(ROOT).as_posix() for path in PAGES}
    assert set(NOT_RUN) <= named
    assert {"README.md", "docs/tour.md", "docs/serving.md"} <= named


def test_a_reason_that_names_a_test_names_one_that_there_is() -> None:
    named = [name for reasons in NOT_RUN.values() for one in reasons for name in _tests_in(one)]
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []


def _tests_in(reason: str) -> list[str]:
    return re.findall(r"tests/\S+\.py", reason)


# --- commands, run or only shown: they exist, with these options ----------------------------------


@cache
def _commands() -> Any:
    return typer.main.get_command(app)


def _command(words: list[str]) -> tuple[Any, list[str]]:
    """The command that the words name, and those that are left for it."""
    found = _commands()
    while words and hasattr(found, "commands") and words[0] in found.commands:
        found, words = found.commands[words[0]], words[1:]
    return found, words


def _unknown(line: str) -> list[str]:
    """What the line says that no command knows."""
    words = shlex.split(line, comments=True)[1:]
    command, rest = _command(words)
    if hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        return rest[:1]
    known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    return [
        word
        for word in rest
        if word.startswith("--") and word.partition("=")[0] not in {*known, "--help", "--"}
    ]


def _given(block: Block) -> list[str]:
    joined = block.text.replace("\\\n", " ")
    return re.findall(r"^(?:\$ )?(holdfast [a-z].*)$", joined, re.M)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_command_exists_with_its_options(path: Path) -> None:
    wrong = {
        line: unknown
        for block in blocks(path)
        for line in _given(block)
        if (unknown := _unknown(line))
    }
    assert wrong == {}


def test_a_command_or_an_option_that_does_not_exist_is_noticed() -> None:
    assert _unknown("holdfast server digits") == ["server"]
    assert _unknown("holdfast serve digits --replica 2") == ["--replica"]
    assert _unknown("holdfast models publish x --onnx y  # --not this") == []


# --- the convention itself ------------------------------------------------------------------------


def page(text: str) -> list[Block]:
    """The blocks of a page with this text."""
    path = ROOT / "docs" / "page.md"

    class Page:
        def read_text(self) -> str:
            return text

        def relative_to(self, root: Path) -> Path:
            return path.relative_to(root)

    return blocks(Page())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("```\nls\n```\n", "does not say what this is"),
        ("```sh unless=1\nls\n```\n", "none of exit, output, skip, when"),
        ("```sh skip\nls\n```\n", "none of exit, output, skip, when"),
        ("```text\n$ ls\n```\n", "is a command"),
        ("```text\nholdfast up\n```\n", "is a command"),
        ("```console\nls\n```\n", "begins with a prompt"),
        ("```yaml\nname: x\n```\n", "does not name the file"),
    ],
)
def test_a_fence_that_does_not_say_what_is_done_with_it_is_refused(text: str, said: str) -> None:
    with pytest.raises(BadFence, match=said):
        page(text)


def test_a_block_is_what_its_fence_says() -> None:
    text = (
        "```yaml\n# job.yaml\nname: x\n```\n"
        '```console exit=1 output when="test -e y"\n$ ls \\\n> -l\nx\n$ false\n```\n'
        '```sh skip="another machine"\nhalt\n```\n'
    )
    file, console, skipped = page(text)
    assert (file.file, file.runs) == ("job.yaml", True)
    assert [one.words for one in console.commands] == ["ls \\\n-l", "false"]
    assert (console.exit, console.output, console.when) == (1, True, "test -e y")
    assert (skipped.skip, skipped.runs) == ("another machine", False)


@pytest.mark.parametrize(
    ("came", "missing"),
    [
        ("counter  running   12/12  99 s\nmore\nend\n", ""),
        ("before\ncounter running 4/4 7s\nend", ""),
        ("counter waiting 4/4 7s\nend", "counter  running  4/4  26s"),
        ("end\ncounter running 4/4 7s", "end"),
    ],
)
def test_output_is_compared_but_for_its_numbers(came: str, missing: str) -> None:
    shown = "counter  running  4/4  26s\nend\n"
    came = came.replace("99 s", "99s")
    assert differs(shown, came) == missing


def reads(tmp_path: Path, text: str) -> Reader:
    """Somebody who has read this page, with the tools of this machine."""
    with Reader(tmp_path, Path("/usr/bin")) as reader:
        for block in page(text):
            reader.does(block)
        return reader


def test_a_reader_does_one_thing_after_the_other(tmp_path: Path) -> None:
    reads(
        tmp_path,
        "```ini\n# a/b.ini\nx\n```\n```sh\ntest -e a/b.ini\ncd a\n```\n"
        "```console output\n$ cat b.ini && pwd | tail -c 3\nx\n/a\n```\n"
        "```sh exit=3\nexit 3\n```\n"
        "```console\n$ sh -c 'echo said; exec sleep 600'\nsaid\n^C\n```\n",
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("```sh\nfalse\ntrue\n```\n", "ends with 1, not 0"),
        ("```sh\nfalse | true\n```\n", "ends with 1, not 0"),
        ("```console output\n$ echo a\nb\n```\n", "did not come: 'b'"),
        ("```console\n$ true\nerror x\n```\n", "it is not refused"),
        ("```sh exit=1\ntrue\n```\n", "ends with 0, not 1"),
    ],
)
def test_a_page_that_does_not_work_is_told_by_its_block(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(AssertionError, match=said):
        reads(tmp_path, text)


def test_what_a_page_leaves_running_is_found_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.docs.reader.LEFT_S", 0.2)
    with Reader(tmp_path, Path("/usr/bin")) as reader:
        (block,) = page("```sh\nsleep 600 &\n```\n")
        reader.does(block)
        assert reader.leaves() == ["sleep 600 "]
    assert reader.leaves() == []

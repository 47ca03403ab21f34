"""The command line: help, errors and exit codes, as a user meets them."""

from __future__ import annotations

import json
import logging
import os
import platform
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from holdfast import __version__
from holdfast.cli import main
from tests.servers import free_port
from tests.unit.cli.running import environment, holdfast, told


def test_help_shows_examples_and_what_the_exit_codes_mean() -> None:
    done = holdfast("--help")
    assert done.returncode == 0
    for text in ("doctor", "coord", "Examples", "Exit codes", "75 try again later"):
        assert text in done.stdout


@pytest.fixture
def logging_as_it_was() -> Iterator[None]:
    """For commands that run inside this process: they set up logs for the whole of it."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.usefixtures("logging_as_it_was")
@pytest.mark.parametrize("command", ["serve", "status", "ls", "tree", "check", "salvage"])
def test_every_coord_command_explains_itself(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main.run(["coord", command, "--help"])
    assert ended.value.code == 0
    assert "Usage" in capsys.readouterr().out


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; import holdfast.cli.main;"
        "heavy = {'kazoo', 'asyncio', 'structlog', 'uvloop', 'torch', 'ssl'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment())
    assert done.stdout.strip() == "[]"


def test_version_is_one_json_document_with_json_and_readable_without() -> None:
    assert told(holdfast("version", "--json"))["holdfast"] == __version__
    assert __version__ in holdfast("version").stdout


def test_a_mistyped_command_or_option_is_wrong_usage_and_names_the_nearest() -> None:
    command = holdfast("coord", "statsu")
    assert command.returncode == 2
    assert "'status'" in command.stderr
    option = holdfast("version", "--jsn")
    assert option.returncode == 2
    assert "--json" in option.stderr
    assert option.stdout == ""


def test_an_error_says_what_why_and_the_fix_without_a_traceback() -> None:
    done = holdfast("coord", "status", f"127.0.0.1:{free_port()}")
    assert done.returncode == 75
    assert done.stdout == ""
    for text in ("error", "no server answers", "why", "fix", "holdfast coord serve"):
        assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_with_json_an_error_is_one_document_on_stderr() -> None:
    done = holdfast("coord", "status", f"127.0.0.1:{free_port()}", "--json")
    error = json.loads(done.stderr)
    assert done.stdout == ""
    assert (error["error"], error["kind"], error["exit_code"]) == ("Unavailable", "retry", 75)
    assert error["what"]
    assert error["fix"]


def test_debug_shows_the_traceback_wherever_it_stands() -> None:
    for words in (["--debug", "coord", "ls", "foo"], ["coord", "ls", "foo", "--debug"]):
        done = holdfast(*words)
        assert done.returncode == 2
        assert "Traceback" in done.stderr
        assert "paths begin with a slash: /foo" in done.stderr


@pytest.mark.usefixtures("logging_as_it_was")
def test_an_unexpected_exception_is_called_a_bug_and_ends_with_seventy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> str:
        raise RuntimeError("nobody thought of this")

    monkeypatch.setattr(platform, "platform", broken)
    with pytest.raises(SystemExit) as ended:
        main.run(["version"])
    assert ended.value.code == 70
    shown = capsys.readouterr().err
    assert "nobody thought of this" in shown
    assert "--debug" in shown
    assert "Traceback" not in shown


@pytest.mark.usefixtures("logging_as_it_was")
def test_an_error_of_the_machine_is_no_bug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused() -> str:
        raise PermissionError(13, "Permission denied", "/some/file")

    monkeypatch.setattr(platform, "platform", refused)
    with pytest.raises(SystemExit) as ended:
        main.run(["version"])
    assert ended.value.code == 1
    assert "Permission denied" in capsys.readouterr().err


def test_a_reader_that_left_is_not_told_a_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "holdfast", "version", "--json"]
    done = subprocess.run(
        command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False, env=environment()
    )
    os.close(writing)
    assert done.returncode == 1
    assert done.stderr == ""


def test_ctrl_c_ends_a_waiting_command_with_130() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        silent.settimeout(60)
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        command = [sys.executable, "-m", "holdfast", "coord", "ls", "/", "--address", address]
        waiting = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment())
        silent.accept()
        waiting.send_signal(signal.SIGINT)
        _, errors = waiting.communicate(timeout=60)
    assert waiting.returncode == 130
    assert "Traceback" not in errors


def test_a_wrong_log_level_is_wrong_usage() -> None:
    done = holdfast("--log-level", "loud", "version")
    assert done.returncode == 2
    assert "debug, info, warning" in done.stderr


def test_the_shell_completes_commands() -> None:
    done = holdfast(
        _HOLDFAST_COMPLETE="complete_bash", COMP_WORDS="holdfast coord st", COMP_CWORD="2"
    )
    assert done.stdout.split() == ["status"]

"""Logs: readable by a person, by a machine, and never telling a secret."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from holdfast.system import logs
from holdfast.wire.errors import Usage


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def logging_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("NO_COLOR", logs.FORM_VARIABLE, logs.LEVEL_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    names = ("", "kazoo", "holdfast.coordination.kazoo")
    handlers = list(logging.getLogger().handlers)
    levels = {name: logging.getLogger(name).level for name in names}
    yield
    logging.getLogger().handlers[:] = handlers
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def written(form: str, level: str = "debug") -> io.StringIO:
    stream = io.StringIO()
    logs.set_up(level, form, stream=stream)
    return stream


def test_a_line_has_time_level_event_and_keys() -> None:
    stream = written("text")
    logs.get("holdfast.place").info("the server listens", address="127.0.0.1:1", clients=3)
    line = stream.getvalue()
    assert line.startswith("20")
    assert "[info" in line
    assert "the server listens" in line
    assert "address=127.0.0.1:1 clients=3" in line
    assert "holdfast.place" in line
    assert "\x1b" not in line


def test_only_a_terminal_gets_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    logs.set_up("info", stream=terminal)
    logs.get("holdfast.place").info("seen")
    assert "\x1b[" in terminal.getvalue()

    monkeypatch.setenv("NO_COLOR", "1")
    plain = Terminal()
    logs.set_up("info", stream=plain)
    logs.get("holdfast.place").info("seen")
    assert "\x1b" not in plain.getvalue()


def test_json_lines_are_one_document_each_and_hold_every_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(logs.FORM_VARIABLE, "json")
    stream = io.StringIO()
    logs.set_up("info", stream=stream)
    log = logs.get("holdfast.place").bind(job="j1")
    log.info("first", step=1)
    log.warning("second", name="not the logger's", path=object())
    first, second = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert (first["event"], first["job"], first["step"]) == ("first", "j1", 1)
    assert first["level"] == "info"
    assert first["logger"] == "holdfast.place"
    assert second["name"] == "not the logger's"


def test_a_secret_is_masked_in_any_form_and_depth() -> None:
    for form in ("text", "json"):
        stream = written(form)
        logs.get("holdfast.place").info(
            "connecting", password="hunter2", api_token="t0k3n", deep={"user_secret": "s3cret"}
        )
        for secret in ("hunter2", "t0k3n", "s3cret"):
            assert secret not in stream.getvalue()
        assert logs.MASK in stream.getvalue()


def test_a_fencing_token_is_a_number_and_stays_readable() -> None:
    stream = written("text")
    logs.get("holdfast.place").info("locked", token=17)
    assert "token=17" in stream.getvalue()


def test_what_kazoo_logs_goes_the_same_way_without_its_passwords() -> None:
    stream = written("json")
    sent = "Auth(auth_type=0, scheme='digest', auth='user:hun\\'ter2')"
    logging.getLogger("kazoo.client").debug("Sending request(xid=%s): %s", 3, sent)
    line = json.loads(stream.getvalue())
    assert line["logger"] == "kazoo.client"
    assert "xid=3" in line["event"]
    assert "ter2" not in line["event"]


def test_kazoo_is_quiet_unless_somebody_looks_for_a_fault() -> None:
    stream = written("text", "info")
    logging.getLogger("kazoo.client").warning("Connection dropped: refused")
    assert stream.getvalue() == ""


def test_a_traceback_comes_once_and_without_local_variables() -> None:
    for form in ("text", "json"):
        stream = written(form)
        phrase = "".join(["hun", "ter2"])
        try:
            raise ValueError("no such thing")
        except ValueError:
            logs.get("holdfast.place").exception("it failed")
        assert stream.getvalue().count("Traceback") == 1
        assert stream.getvalue().count("ValueError: no such thing") == 1
        assert phrase not in stream.getvalue()


def test_an_event_below_the_level_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(logs.LEVEL_VARIABLE, "error")
    stream = io.StringIO()
    logs.set_up(stream=stream)
    logs.get("holdfast.place").warning("too quiet")
    logs.get("holdfast.place").error("loud enough")
    assert "too quiet" not in stream.getvalue()
    assert "loud enough" in stream.getvalue()


def test_an_unknown_level_or_form_is_wrong_usage_that_names_the_known_ones() -> None:
    with pytest.raises(Usage, match="debug, info, warning"):
        logs.set_up("loud")
    with pytest.raises(Usage, match="auto, text, json"):
        logs.set_up("info", "xml")


def test_without_set_up_the_users_own_logging_decides_and_stdout_stays_clean() -> None:
    code = (
        "from holdfast.system import logs; log = logs.get('holdfast.place');"
        "log.info('quiet'); log.warning('loud', password='hunter2', n=1)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert done.stderr == f"loud password='{logs.MASK}' n=1\n"

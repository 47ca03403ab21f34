"""The doctor: every check says what it saw, and how to mend it."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from holdfast.cli import doctor
from holdfast.wire.errors import Unavailable
from tests.servers import EmbeddedServer, free_port
from tests.unit.cli.running import holdfast, told

# A busy machine is no reason for a test to fail; the command itself is bounded.
PATIENT_S = 60.0
NAMES = ["python", "torch", "coordination", "fsync", "disk", "port", "clock", "open files", "tmp"]


def test_every_check_runs_and_each_that_is_not_fine_has_a_fix(tmp_path: Path) -> None:
    done = holdfast("doctor", "--json", "--data", str(tmp_path))
    report = told(done)
    assert [check["name"] for check in report["checks"]] == NAMES
    for check in report["checks"]:
        assert check["state"] in ("PASS", "WARN", "FAIL")
        assert check["seen"]
        assert check["state"] == "PASS" or check["fix"]
    assert done.returncode == (0 if report["ok"] else 1)
    assert list(tmp_path.iterdir()) == []


def test_for_a_person_it_prints_a_line_for_each_check(tmp_path: Path) -> None:
    shown = holdfast("doctor", "--data", str(tmp_path / "not" / "there" / "yet")).stdout
    for name in NAMES:
        assert name in shown


def test_without_an_address_a_throwaway_server_is_asked() -> None:
    check = doctor.coordination(None, PATIENT_S)
    assert check.state == doctor.PASS
    assert "a throwaway server" in check.seen
    assert "3.8.0" in check.seen


def test_a_given_address_is_asked_instead(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path / "server") as server:
        check = doctor.coordination(server.hosts, PATIENT_S)
    assert check.state == doctor.PASS
    assert server.hosts in check.seen


def test_an_address_that_does_not_answer_fails_with_the_fix_and_without_the_password(
    tmp_path: Path,
) -> None:
    address = f"zk://127.0.0.1:{free_port()}?user=me&password_env=PHRASE"
    done = holdfast("doctor", "--data", str(tmp_path), "--address", address, PHRASE="hunter2")
    assert done.returncode == 1
    assert "FAIL  coordination" in done.stdout
    assert "fix" in done.stdout
    assert "hunter2" not in done.stdout + done.stderr


def test_a_folder_that_cannot_be_written_fails(tmp_path: Path) -> None:
    file = tmp_path / "a-file"
    file.write_text("")
    check = doctor.fsync(file)
    assert check.state == doctor.FAIL
    assert check.fix


def test_a_slow_disk_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "FSYNC_MS_WARN", 0.0)
    assert doctor.fsync(tmp_path).state == doctor.WARN


def test_little_room_is_warned_of_and_hardly_any_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "DISK_FREE_BYTES_WARN", 1 << 62)
    assert doctor.disk(tmp_path).state == doctor.WARN
    monkeypatch.setattr(doctor, "DISK_FREE_BYTES_MIN", 1 << 62)
    assert doctor.disk(tmp_path).state == doctor.FAIL


def test_a_port_is_free_ours_or_somebody_elses(tmp_path: Path) -> None:
    assert doctor.port(free_port()).seen.endswith("is free")
    with EmbeddedServer(tmp_path / "server") as server:
        assert "coordination server" in doctor.port(server.port).seen
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        check = doctor.port(other.getsockname()[1])
    assert check.state == doctor.WARN
    assert "--listen" in check.fix


def test_few_open_files_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "OPEN_FILES_WARN", 1 << 62)
    assert doctor.open_files().state == doctor.WARN


def test_the_clock_is_steady_and_its_service_is_known_or_not() -> None:
    assert doctor.clock().state in (doctor.PASS, doctor.WARN)
    assert doctor.is_synchronised() in (True, False, None)


def test_what_takes_too_long_is_given_up() -> None:
    never = threading.Event()
    with pytest.raises(Unavailable, match="no answer within"):
        doctor._within(0.1, never.wait)
    never.set()


def test_an_error_of_the_work_is_passed_on() -> None:
    def fail() -> None:
        raise ValueError("inner")

    with pytest.raises(ValueError, match="inner"):
        doctor._within(5.0, fail)
    assert doctor._within(5.0, lambda: 7) == 7

"""Whom the workers of a queue run as: who can be found, and what is covered on the way."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from holdfast.agent import sandbox, users
from holdfast.agent.privacy import Privacy
from holdfast.wire.errors import Refused

MOUNTS = Privacy(sandbox.MOUNT)
SOMEBODY = users.Account("somebody", 54_321, 54_321, (54_321,), "/nonexistent")


def refusal(name: str, privacy: Privacy = MOUNTS) -> str:
    with pytest.raises(Refused) as refused:
        users.account(name, "trials", privacy)
    assert "trials" in refused.value.what
    return refused.value.fix


def test_an_agent_that_is_not_roots_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1_000)
    assert "as root" in refusal("nobody")


def test_what_cannot_be_a_workers_user_is_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert "useradd" in refusal("holdfast-no-such-user")
    assert "another one" in refusal(pwd.getpwuid(0).pw_name)
    assert "mount namespaces" in refusal("nobody", Privacy("", "it was forbidden"))
    found = users.account("nobody", "trials", MOUNTS)
    assert found.uid == pwd.getpwnam("nobody").pw_uid
    assert found.gid in found.groups
    assert found.environment()["USER"] == "nobody"


def test_the_outermost_folder_that_cannot_be_passed_is_covered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "SHARED", ())  # the tests' own folder may lie there
    closed = (tmp_path / "closed", tmp_path / "c/d/e")
    monkeypatch.setattr(users, "_may_pass", lambda folder, _user: folder not in closed)
    for name in ("closed/inner/deep", "c/d/e", "open/x"):
        (tmp_path / name).mkdir(parents=True)
    needed = [str(tmp_path / "closed/inner/deep"), str(tmp_path / "c/d/e"), str(tmp_path / "open")]
    needed.append(str(tmp_path / "closed/is not there"))
    found = users.covered(SOMEBODY, needed)
    assert found == [str(tmp_path / "c/d/e"), str(tmp_path / "closed")]


def test_who_may_pass_a_folder_is_as_the_system_has_it(tmp_path: Path) -> None:
    here = tmp_path.stat()
    for mode, uid, groups, expected in (
        (0o700, here.st_uid, (), True),
        (0o611, here.st_uid, (), False),
        (0o710, 54_321, (here.st_gid,), True),
        (0o701, 54_321, (here.st_gid,), False),
        (0o701, 54_321, (), True),
        (0o710, 54_321, (), False),
    ):
        tmp_path.chmod(mode)
        who = users.Account("x", uid, 54_321, groups, "/")
        assert users._may_pass(tmp_path, who) is expected, oct(mode)
    tmp_path.chmod(0o700)

"""Who may do what by the role in the file of users."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.topics.broker.core.acls import Operation, ResourceKind, allows
from holdfast.topics.broker.users import Users
from holdfast.wire.errors import Refused

WORKER = "User:worker"


def users(tmp_path: Path, text: str) -> Users:
    (tmp_path / "users").write_text(text)
    return Users.read(tmp_path / "users")


def may(known: Users, operation: Operation, kind: ResourceKind, name: str) -> bool:
    return allows(known.rules(WORKER), WORKER, "127.0.0.1", operation, kind, name)


def test_a_member_uses_topics_and_does_not_change_what_the_system_tells(tmp_path: Path) -> None:
    known = users(tmp_path, "# who\nroot a super\nworker b member\nalice c\n")
    topic, group = ResourceKind.TOPIC, ResourceKind.GROUP
    for operation in (Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE):
        assert may(known, operation, topic, "clicks")
        system_may = operation is Operation.READ
        assert may(known, operation, topic, "holdfast.events") is system_may
        assert may(known, operation, topic, "model.updated") is system_may
    assert may(known, Operation.READ, group, "any")
    assert may(known, Operation.WRITE, ResourceKind.TRANSACTIONAL_ID, "any")
    assert not may(known, Operation.ALTER, ResourceKind.CLUSTER, "kafka-cluster")
    assert not known.is_super(WORKER)
    assert known.is_super("User:root")
    assert not known.is_super("User:alice")
    assert known.rules("User:alice") == known.rules("User:root") == ()


def test_a_role_that_there_is_not_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="line 2 of"):
        users(tmp_path, "root a super\nworker b owner\n")

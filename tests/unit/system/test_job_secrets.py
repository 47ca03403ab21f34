"""A job's secret: the same for every leader, another for every job, and in no other eyes."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from holdfast.agent import journal
from holdfast.agent.events import Accepted, Slots
from holdfast.system.certificates import Authority
from holdfast.system.job_certificates import JobSecrets, equip
from holdfast.system.job_credentials import Credentials
from holdfast.wire import values, worker_messages
from holdfast.wire.errors import Usage
from holdfast.wire.orders import StartWorker
from holdfast.wire.resources import Resources


def test_every_coordinator_knows_the_same_secret_of_a_job_and_another_of_each(
    tmp_path: Path,
) -> None:
    made = Authority.make(tmp_path / "one", "home")
    Authority.keep(tmp_path / "lent", *made.lent())
    one, other = JobSecrets(made), JobSecrets(Authority.open(tmp_path / "lent"))
    assert one.of("digits") == other.of("digits") != one.of("digits2")
    assert len(bytes.fromhex(one.of("digits"))) == 32
    stranger = JobSecrets(Authority.make(tmp_path / "two", "home"))
    assert stranger.of("digits") != one.of("digits")


def test_a_worker_finds_its_secret_in_files_that_only_its_owner_reads(tmp_path: Path) -> None:
    equip(tmp_path, "5e" * 32)
    equip(tmp_path, "5f" * 32)  # an agent that was restarted does it again
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    found = Credentials.read(tmp_path, "job")
    assert found.secret == bytes.fromhex("5f" * 32)
    assert "5f5f" not in repr(found) and found.client and found.server


def test_a_worker_without_a_secret_says_so(tmp_path: Path) -> None:
    for text in (None, "", "5e", "no number"):
        if text is not None:
            (tmp_path / worker_messages.SECRET_NAME).write_text(text)
        with pytest.raises(Usage, match="secret"):
            Credentials.read(tmp_path, "job")


def test_an_order_carries_the_secret_and_does_not_print_it() -> None:
    order = StartWorker("n1", "job", 1, "", ("true",), Resources(1.0), secret="5e" * 32)
    found = values.order_from(values.order_bytes(order))
    assert isinstance(found, StartWorker)
    assert found == order and found.secret == order.secret
    assert "5e5e" not in repr(order)


def test_values_of_secrets_travel_in_an_order_and_are_in_no_text_and_no_journal() -> None:
    order = StartWorker(
        "n1",
        "job",
        1,
        "",
        ("true",),
        Resources(1.0),
        references={"TOKEN": "hub"},
        secrets={"TOKEN": "xyzzy"},
    )
    found = values.order_from(values.order_bytes(order))
    assert isinstance(found, StartWorker)
    assert found == order and found.secrets == {"TOKEN": "xyzzy"}
    assert "xyzzy" not in repr(order)
    kept = journal.encode(Accepted(order, Slots()))
    assert "xyzzy" not in json.dumps(kept)
    again = journal.decode(json.loads(json.dumps(kept)))
    assert isinstance(again, Accepted)
    assert again.order.references == {"TOKEN": "hub"} and again.order.secrets == {}

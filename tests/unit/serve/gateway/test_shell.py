"""The small parts around the decisions: options, files, memory."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from holdfast.serve.gateway import envoy, gateway
from holdfast.serve.gateway.admin import Admin
from holdfast.serve.gateway.applying import Applying, Files
from holdfast.serve.gateway.gateway import LastKnown
from holdfast.serve.gateway.main import parsed
from holdfast.serve.gateway.resources import resources
from holdfast.serve.gateway.state import Front, GatewayTls
from holdfast.wire.errors import Full, MissingExtra, Occupied, Usage
from tests.faults.file_limit import files_no_larger_than
from tests.unit.serve.gateway.making import known, plan, seen, state

WORDS = ("--cluster", "c", "--name", "front", "--listen")


def test_options_become_a_front() -> None:
    found = parsed((*WORDS, "127.0.0.1:8080", "--region", "eu", "--regions", "us,asia"))
    assert (found.front.host, found.front.port) == ("127.0.0.1", 8080)
    assert (found.front.region, found.front.regions) == ("eu", ("us", "asia"))
    assert parsed((*WORDS, "[::1]:80")).front.host == "::1"
    assert parsed((*WORDS, "localhost:80")).front.host in ("127.0.0.1", "::1")


@pytest.mark.parametrize("listen", ["8080", "127.0.0.1:", "127.0.0.1:0", "h:70000", ":80"])
def test_what_is_no_address_is_refused(listen: str) -> None:
    with pytest.raises(Usage, match="listen"):
        parsed((*WORDS, listen))


def test_tls_needs_both_files_and_both_must_be_there(tmp_path: Path) -> None:
    certificate, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    certificate.touch()
    words = (*WORDS, "127.0.0.1:1", "--tls-certificate", str(certificate))
    with pytest.raises(Usage, match="two files"):
        parsed(words)
    with pytest.raises(Usage, match=r"key\.pem"):
        parsed((*words, "--tls-key", str(key)))
    key.touch()
    assert parsed((*words, "--tls-key", str(key))).front.tls == GatewayTls(
        str(certificate), str(key)
    )


def test_a_port_that_somebody_has_is_not_shared_with_him() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Occupied, match=str(port)):
            envoy.check_free(Front("127.0.0.1", port))
    envoy.check_free(Front("127.0.0.1", port))


def test_without_an_envoy_the_command_that_brings_one_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "envoy", None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MissingExtra, match="pip install"):
        envoy.program()


def test_a_file_is_known_to_be_whole_or_not(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.write("rds/routes.json", {"version_info": "1", "resources": []})
    assert files.intact("rds/routes.json")
    (tmp_path / "rds" / "routes.json").write_text("{}")
    assert not files.intact("rds/routes.json")
    files.remove("rds/routes.json")
    assert not (tmp_path / "rds").exists()


def test_files_of_an_earlier_gateway_are_known_but_for_broken_ones(tmp_path: Path) -> None:
    first = Files(tmp_path)
    first.write("rds/routes.json", {"version_info": "1", "resources": []})
    first.write("cds/clusters.json", {"version_info": "2", "resources": []})
    (tmp_path / "cds/clusters.json").write_text("{broken")
    second = Files(tmp_path)
    second.adopt()
    assert sorted(second.written) == ["rds/routes.json"]


def test_without_room_the_files_of_before_stay_all_of_them(tmp_path: Path) -> None:
    names = ("cds/clusters.json", "rds/routes.json")
    files = Files(tmp_path)
    old = {name: {"version_info": "1", "resources": []} for name in names}
    files.write_all(old)
    large = {"version_info": "2", "resources": ["x" * 1_000]}
    with files_no_larger_than(500):
        with pytest.raises(Full):
            files.write("rds/routes.json", large)
        with pytest.raises(Full):
            files.write_all({names[0]: {"version_info": "2", "resources": []}, names[1]: large})
    assert files.written == old
    assert all(files.intact(name) for name in names)
    files.write_all({names[0]: large, names[1]: large})
    assert all(files.intact(name) for name in names)


def test_without_room_an_envoy_starts_with_what_an_earlier_one_had(tmp_path: Path) -> None:
    admin = Admin(tmp_path)
    old = resources(state(known(plan((1, 10_000)), seen(1))))
    Applying(Files(tmp_path), admin).prepare(old)
    new = resources(state(known(plan((1, 10_000)), seen(1), seen(2))))
    later = Files(tmp_path)
    with files_no_larger_than(100):
        Applying(later, admin).prepare(new)
        assert later.written == old
        empty = tmp_path / "empty"
        empty.mkdir()
        with pytest.raises(Full):
            Applying(Files(empty), admin).prepare(new)


def test_what_was_known_stays_remembered_when_there_is_no_room_for_more(tmp_path: Path) -> None:
    gateway.remember(tmp_path, LastKnown(1.0))
    services = (known(plan((1, 10_000)), *(seen(worker) for worker in range(20))),)
    with files_no_larger_than(200), pytest.raises(Full):
        gateway.remember(tmp_path, LastKnown(2.0, services))
    assert gateway.recall(tmp_path) == LastKnown(1.0)


def test_what_was_known_is_remembered_whole(tmp_path: Path) -> None:
    assert gateway.recall(tmp_path) is None
    services = (known(plan((1, 9_000), (2, 1_000)), seen(1, (1, 2)), seen(2, lost_s=5.0)),)
    gateway.remember(tmp_path, LastKnown(12.5, services))
    assert gateway.recall(tmp_path) == LastKnown(12.5, services)
    (tmp_path / "knowledge.json").write_text('{"format": 99}')
    assert gateway.recall(tmp_path) is None

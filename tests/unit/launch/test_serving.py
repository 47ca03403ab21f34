"""Where gateways are started, and where they are found again."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from holdfast.cluster import create
from holdfast.launch import serving
from holdfast.launch.serving import GATEWAY_PORT, GATEWAY_PORTS_TRIED, GatewayAddress
from holdfast.wire.errors import Occupied, Usage
from tests.servers import free_port


def test_a_cluster_that_never_served_starts_nothing(tmp_path: Path) -> None:
    cluster = create(tmp_path / "cluster")
    assert serving.places(cluster) == {}
    assert serving.again(cluster) == []


def test_gateways_are_remembered_with_their_addresses(tmp_path: Path) -> None:
    cluster = create(tmp_path / "cluster")
    known = {
        "gateway-1": GatewayAddress("127.0.0.1:8080"),
        "gateway-2": GatewayAddress("127.0.0.1:8090", "north"),
    }
    serving._write(cluster, known)
    assert serving.places(cluster) == known


def test_a_gateway_takes_the_first_port_that_is_free(tmp_path: Path) -> None:
    host, port = serving._free("127.0.0.1").rsplit(":", 1)
    assert host == "127.0.0.1"
    assert GATEWAY_PORT <= int(port) < GATEWAY_PORT + GATEWAY_PORTS_TRIED


def test_an_address_that_another_process_has_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        assert not serving._is_free("127.0.0.1", taken)
    assert serving._is_free("127.0.0.1", free_port())


@pytest.mark.parametrize("text", ["8080", "127.0.0.1:", "127.0.0.1:0", "h:99999", "h:http"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(Usage, match="is not HOST:PORT"):
        serving._address(text)


def test_no_free_port_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_is_free", lambda _host, _port: False)
    with pytest.raises(Occupied, match="is in use"):
        serving._free("127.0.0.1")

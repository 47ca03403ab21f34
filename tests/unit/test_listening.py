"""How a server of ours listens."""

from __future__ import annotations

from pathlib import Path

from holdfast.system.listening import SERVER_FILE, is_loopback, port_before, write_server_file


def test_a_server_behind_another_address_takes_that_ones_port_after_a_kill(tmp_path: Path) -> None:
    write_server_file(tmp_path, "broker.example:9092", port=41_234)
    assert port_before(tmp_path) == 41_234
    write_server_file(tmp_path, "127.0.0.1:2181")
    assert port_before(tmp_path) == 2181


def test_a_server_file_that_is_none_stops_a_start(tmp_path: Path) -> None:
    assert port_before(tmp_path) == 0
    for content in ("", "7", "[]", "{}", '{"address": 7}', '{"address": "x"}', '{"port": "x"}'):
        (tmp_path / SERVER_FILE).write_text(content)
        assert port_before(tmp_path) in (0, 7)


def test_an_address_of_every_network_counts_as_loopback() -> None:
    assert all(
        is_loopback(host) for host in ("127.0.0.1", "127.8.0.1", "::1", "[::1]", "localhost")
    )
    assert not any(is_loopback(host) for host in ("", "0.0.0.0", "::", "10.0.0.1", "example.org"))

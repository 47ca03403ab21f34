"""What is mended of kazoo, without a server."""

from __future__ import annotations

from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError, ConnectionClosedError
from kazoo.protocol.states import KeeperState

from holdfast.coordination import kazoo_client
from holdfast.coordination.address import ZooKeeperAddress, parse


class Wake:
    """The end of a pipe through which kazoo's thread is woken. `raises`: what happens there."""

    def __init__(self, raises: BaseException | None = None) -> None:
        self._raises = raises
        self.woken = 0

    def send(self, _data: bytes) -> None:
        self.woken += 1
        if self._raises is not None:
            raise self._raises


def client(wake: Wake | None, state: Any = KeeperState.CONNECTED) -> KazooClient:
    address = parse("zk://127.0.0.1:1")
    assert isinstance(address, ZooKeeperAddress)
    made = kazoo_client.make(address, address.host_list, lambda _timeout_s: None)
    made._state = state
    made._connection._write_sock = wake
    return made


def test_a_ctrl_c_that_comes_while_a_request_is_sent_is_not_swallowed() -> None:
    interrupted = client(Wake(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        interrupted.get_async("/a")


def test_a_request_is_queued_and_its_sender_is_woken() -> None:
    wake = Wake()
    sending = client(wake)
    answer = sending.get_async("/a")
    assert [queued for _, queued in sending._queue] == [answer]
    assert wake.woken == 1
    assert not answer.ready()


@pytest.mark.parametrize("wake", [None, Wake(BrokenPipeError())], ids=["gone", "broken"])
def test_a_request_to_a_connection_that_closes_just_now_is_told_so(wake: Wake | None) -> None:
    with pytest.raises(ConnectionClosedError):
        client(wake).get_async("/a").get(timeout=0)


def test_a_request_without_a_session_is_refused_as_kazoo_does() -> None:
    wake = Wake()
    with pytest.raises(AuthFailedError):
        client(wake, KeeperState.AUTH_FAILED).get_async("/a").get(timeout=0)
    assert wake.woken == 0

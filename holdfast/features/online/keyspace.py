"""Where keys are: on one server that speaks RESP, or on many (`redis_cluster`). What is common to
both, and the one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from redis.exceptions import ResponseError

from holdfast.features.address import FeaturesAddress
from holdfast.features.online.resp import Reply, RespSettings, Server, parse_host, talk
from holdfast.features.online.resp_failures import translate


class RespCommand(NamedTuple):
    """A packed command, and the slot of all keys in it. `reads`: it changes nothing."""

    slot: int
    packed: bytes
    reads: bool = False


class Keyspace(Protocol):
    """The servers that have our keys."""

    def slot_of(self, key: bytes) -> int:
        """Keys of one slot may stand in one command."""

    def exchange(self, commands: Sequence[RespCommand], what: str) -> list[Reply]:
        """Answers in the order of the commands, all in one round trip. An error of the server for
        one command is its answer; raises, with `what` could not be done, if a server is away."""

    def primaries(self) -> list[Server]:
        """The servers that take writes, as far as is known; in a fixed order."""

    def all_servers(self) -> list[Server]:
        """These, and their replicas."""

    def name_of(self, slot: int) -> str:
        """The server of a slot, for sentences."""

    def close(self) -> None: ...


class OneServer:
    """All keys are on one server, and in one slot."""

    def __init__(self, address: FeaturesAddress, answer_s: float) -> None:
        self._settings = RespSettings(address, answer_s)
        if address.socket is not None:
            self._server = Server(str(address.socket), self._settings)
        else:
            host, port = parse_host(address.hosts[0])
            self._server = Server(address.hosts[0], self._settings, host=host, port=port)

    def slot_of(self, key: bytes) -> int:
        return 0

    def exchange(self, commands: Sequence[RespCommand], what: str) -> list[Reply]:
        replies = talk({self._server: [one.packed for one in commands]})[self._server]
        check_reached(replies, what, self._server.name)
        return replies

    def primaries(self) -> list[Server]:
        return [self._server]

    def all_servers(self) -> list[Server]:
        return [self._server]

    def name_of(self, slot: int) -> str:
        return self._server.name

    def close(self) -> None:
        self._server.close()
        self._settings.close()


def check_reached(replies: Sequence[Reply], what: str, server: str) -> None:
    """Raise what stood in the way, if the server was not reached."""
    for reply in replies:
        if not is_reached(reply):
            raise translate(reply, what, server)


def is_reached(reply: Reply) -> bool:
    """Whether the server has said something of this command, be it an error."""
    return not isinstance(reply, Exception) or isinstance(reply, ResponseError)

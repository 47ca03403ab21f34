"""One request on its way: what was asked, by whom, and where its answer goes."""

from __future__ import annotations

from typing import Any

from holdfast.topics.broker.connection import AnswerSlot, KafkaConnection
from holdfast.topics.broker.protocol import apis
from holdfast.topics.broker.protocol.apis import Api, RequestHead


class ClientRequest:
    """A request that was decoded. It is answered once; or never, if nobody waits for it."""

    __slots__ = ("_head", "_slot", "api", "body", "link")

    def __init__(
        self, link: KafkaConnection, api: Api, head: RequestHead, body: Any, slot: AnswerSlot
    ) -> None:
        self.link = link
        self.api = api
        self.body = body
        self._head = head
        self._slot = slot

    @property
    def version(self) -> int:
        return self._head.version

    @property
    def client_id(self) -> str:
        return self._head.client_id or ""

    def answer(self, response: object) -> None:
        head = self._head
        self._slot.fill(apis.encode_response(self.api, head.version, head.correlation_id, response))

    def no_answer(self) -> None:
        """Nothing is sent, and what follows need not wait."""
        self._slot.fill([])

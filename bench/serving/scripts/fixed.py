"""A server that answers fixed bytes to everything: `fixed.py HOST PORT MODEL`.

What granian (RSGI, in an asyncio loop of uvloop) can do when nothing is left to do: a yardstick
that is not ours.
"""

from __future__ import annotations

import sys
from typing import Any

import uvloop
from granian.constants import Interfaces
from granian.server.embed import Server

from bench.serving import work


async def serve(host: str, port: int, model: str) -> None:
    reply = work.fixed_reply(model)
    headers = [("content-type", "application/json"), ("x-holdfast-version", "1")]

    class App:
        async def __rsgi__(self, scope: Any, protocol: Any) -> None:
            await protocol()
            protocol.response_bytes(200, headers, reply)

    server = Server(
        App(), host, port, interface=Interfaces.RSGI, websockets=False, log_enabled=False
    )
    await server.serve()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], int(sys.argv[2]), sys.argv[3]))

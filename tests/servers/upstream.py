"""A small upstream: a process that answers as a replica does, with its versions and its health.

    python -m tests.servers.upstream HOST:PORT --name 3 --region eu --versions 1,2

`POST /control?versions=1,2&ready=0&delay_ms=20&fail=1` changes how it behaves from then on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from tests.servers.process import ServerProcess


class Upstream(ServerProcess):
    """The process, for a test. `worker` is also its name in answers."""

    def __init__(
        self,
        folder: Path,
        worker: int,
        versions: Sequence[int] = (1,),
        region: str = "",
        host: str = "127.0.0.1",
    ) -> None:
        super().__init__(folder / f"upstream-{worker}-{region}")
        self.worker = worker
        self.versions = tuple(versions)
        self.region = region
        self.host = host

    def command(self) -> Sequence[str]:
        versions = ",".join(map(str, self.versions))
        words = ["--name", str(self.worker), "--region", self.region, "--versions", versions]
        module = "tests.servers.upstream"
        return [sys.executable, "-m", module, f"{self.host}:{self.port}", *words]

    def ready(self) -> bool:
        try:
            self.control()
        except OSError:
            return False
        return True

    def control(self, **how: object) -> int:
        """Let it behave otherwise. How many requests have come to it."""
        query = urllib.parse.urlencode(how)
        request = urllib.request.Request(
            f"http://{self.host}:{self.port}/control?{query}", method="POST"
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.read())


class Behaviour:
    def __init__(self, name: str, region: str, versions: frozenset[int]) -> None:
        self.name = name
        self.region = region
        self.versions = versions
        self.ready = True
        self.delay_s = 0.0
        self.fail = 0
        self.breaks = False  # hangs up instead of an answer
        self.asked = 0

    def change(self, query: str) -> None:
        said = dict(urllib.parse.parse_qsl(query))
        if "versions" in said:
            self.versions = numbers(said["versions"])
        self.ready = said.get("ready", str(int(self.ready))) == "1"
        self.delay_s = float(said.get("delay_ms", 1000 * self.delay_s)) / 1000
        self.fail = int(said.get("fail", self.fail))
        self.breaks = said.get("breaks", str(int(self.breaks))) == "1"

    async def answer(
        self, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        where, _, query = path.partition("?")
        if where == "/control":
            self.change(query)
            return 200, {}, str(self.asked).encode()
        if where == "/v2/health/ready":
            return (200 if self.ready else 503), {}, b"{}"
        self.asked += 1
        if self.breaks:
            raise ConnectionAbortedError("told to break")
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        asked = int(headers.get("x-holdfast-version", "0")) or max(self.versions)
        version = asked
        if version not in self.versions and "x-holdfast-instead" in headers:
            version = int(headers["x-holdfast-instead"])
        who = {
            "x-holdfast-replica": self.name,
            "x-holdfast-region": self.region,
            "x-holdfast-variant": headers.get("x-holdfast-variant", ""),
        }
        if version not in self.versions:
            return 503, {**who, "x-holdfast-not-here": "1"}, b'{"error":"not here"}'
        if self.fail:
            return self.fail, who, b'{"error":"told to fail"}'
        told = {"path": path, "bytes": len(body), "headers": headers, "asked": asked}
        return 200, {**who, "x-holdfast-version": str(version)}, json.dumps(told).encode()


async def talk(
    behaviour: Behaviour, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            pairs = (line.split(":", 1) for line in head[1:] if ":" in line)
            headers = {key.lower(): text.strip() for key, text in pairs}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            status, more, answer = await behaviour.answer(head[0].split()[1], headers, body)
            lines = [f"HTTP/1.1 {status} X", f"content-length: {len(answer)}"]
            lines += [f"{key}: {text}" for key, text in more.items()]
            writer.write("\r\n".join([*lines, "", ""]).encode() + answer)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


def numbers(text: str) -> frozenset[int]:
    return frozenset(int(word) for word in text.split(",") if word)


async def serve(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("listen")
    parser.add_argument("--name", required=True)
    parser.add_argument("--region", default="")
    parser.add_argument("--versions", default="1")
    given = parser.parse_args(words)
    behaviour = Behaviour(given.name, given.region, numbers(given.versions))
    host, _, port = given.listen.rpartition(":")
    server = await asyncio.start_server(
        lambda reader, writer: talk(behaviour, reader, writer), host, int(port), backlog=512
    )
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1:]))

"""A synthetic next version: `python -m tests.integration.next_version MODULE WORDS...`.

It runs a process of ours that writes a field more wherever it writes, an entry of an unknown kind
into its journal, an order of an unknown kind into every batch, and a line of an unknown kind to
every worker.
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

from holdfast.agent import channel, journal
from holdfast.control.rpc.connections import AgentConnection, AgentConnections
from holdfast.wire import documents, values

NEWER = "of_a_newer_version"
# Fields that hold a value with fields of its own, and no mapping by names.
WITHIN = frozenset(
    {"attempt", "capacity", "exit", "order", "resources", "slots", "spec", "status", "view"}
)


def more(plain: Any) -> Any:
    """The same with a field more, here and in what it holds."""
    if not isinstance(plain, dict):
        return plain
    held = {name: more(each) if name in WITHIN else each for name, each in plain.items()}
    if isinstance(held.get("workers"), list):
        held["workers"] = [more(worker) for worker in held["workers"]]
    return {**held, NEWER: {"it": [1, None]}}


def change() -> None:
    encode, document, entry = values._encode, documents.document, journal.encode
    open_journal = journal.Journal.open
    take, append, send = AgentConnections.take, journal.Journal.append, channel.Channel.send

    def encode_more(body: Any) -> bytes:
        plain = json.loads(encode(body))
        if len(plain) == 1:  # an order: its fields by its kind
            plain = {kind: more(fields) for kind, fields in plain.items()}
        else:
            plain = more(plain)
        return json.dumps(plain).encode()

    def take_more(self: AgentConnections, connection: AgentConnection) -> list[bytes]:
        dance = {"dance": {"node": connection.hello.node, "job": "any", "worker": 1}}
        taken = take(self, connection)
        return [*taken, json.dumps(dance).encode()] if taken else taken

    def append_more(self: journal.Journal, given: list[Any]) -> None:
        danced: Any = {"kind": "danced", "with": ["whom", 1]}
        append(self, [*given, danced])

    def open_more(folder: Path) -> tuple[journal.Journal, journal.Recovery]:
        opened, found = open_journal(folder)
        opened.append([])
        return opened, found

    def send_more(self: channel.Channel, key: Any, line: bytes) -> None:
        send(self, key, b'{"dance": {}}\n' + line)

    changes: list[tuple[Any, str, object]] = [
        (values, "_encode", encode_more),
        (documents, "document", lambda value: more(document(value))),
        (journal, "encode", lambda value: more(entry(value))),
        (AgentConnections, "take", take_more),
        (journal.Journal, "append", append_more),
        (journal.Journal, "open", staticmethod(open_more)),
        (channel.Channel, "send", send_more),
    ]
    for where, name, changed in changes:
        setattr(where, name, changed)


if __name__ == "__main__":
    change()
    _, module, *words = sys.argv
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)

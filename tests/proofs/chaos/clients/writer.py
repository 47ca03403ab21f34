"""`python -m tests.proofs.chaos.clients.writer`: writes through the coordination plane.

In turn it appends a node to a sequence and sets a register. Before each write a line says what is
tried, after it another what was acknowledged. A write without the second line may have happened or
not: nobody tries it again.
"""

from __future__ import annotations

import argparse
import logging
import os
import threading
from pathlib import Path
from typing import Final

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from holdfast.coordination import access
from holdfast.system import process
from tests.proofs.chaos.clients.records import Record

ROOT: Final = "/writes"
SEQUENCE: Final = f"{ROOT}/sequence"
REGISTERS: Final = 4
EVERY_S: Final = 0.1
ANSWER_S: Final = 5.0
CONNECT_S: Final = 5.0


class Writer:
    """One client. `name` is different in each life of it."""

    def __init__(self, hosts: str, credential: str, name: str, record: Record) -> None:
        self._name = name
        self._record = record
        quiet = logging.getLogger("tests.proofs.chaos.clients.writer.kazoo")
        quiet.setLevel(logging.CRITICAL)  # servers are killed all the time
        shown = [("digest", credential)]
        self._client = KazooClient(hosts, timeout=6.0, logger=quiet, auth_data=shown)

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                self._client.start(timeout=CONNECT_S)
                self._client.ensure_path(SEQUENCE)
                for register in range(REGISTERS):
                    self._client.ensure_path(f"{ROOT}/{register}")
                break
            except (KazooException, KazooTimeoutError):
                self._client.stop()
        number = 0
        while not stop.wait(EVERY_S):
            number += 1
            try:
                if number % 2:
                    self._append(f"{self._name}-{number}")
                else:
                    self._set(number // 2 % REGISTERS, f"{self._name}-{number}")
            except (KazooException, KazooTimeoutError):
                stop.wait(EVERY_S)  # not acknowledged; the client comes back by itself
        self._client.stop()
        self._client.close()

    def _append(self, value: str) -> None:
        self._record.write(tried=value, register=None)
        asked = self._client.create_async(f"{SEQUENCE}/n-", value.encode(), sequence=True)
        name = str(asked.get(timeout=ANSWER_S)).rpartition("/")[2]
        self._record.write(acknowledged=value, register=None, place=int(name[2:]))

    def _set(self, register: int, value: str) -> None:
        self._record.write(tried=value, register=register)
        stat = self._client.set_async(f"{ROOT}/{register}", value.encode()).get(timeout=ANSWER_S)
        self._record.write(acknowledged=value, register=register, place=stat.version)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", required=True)
    parser.add_argument("--secret-file", type=Path, required=True, help="of the plane")
    parser.add_argument("--record", type=Path, required=True)
    given = parser.parse_args()
    stop = threading.Event()
    process.on_termination(stop.set)
    shown = access.read(given.secret_file).credential
    Writer(given.hosts, shown, str(os.getpid()), Record(given.record)).run(stop)


if __name__ == "__main__":
    main()

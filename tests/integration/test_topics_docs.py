"""The programs in `docs/topics.md` that need a broker, run as they are printed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Block, blocks
from tests.servers.broker import BrokerServer
from tests.waiting import PATIENCE_S

PRINTED = "127.0.0.1:9092"
PROGRAMS = [
    block for block in blocks(ROOT / "docs" / "topics.md") if "test_topics_docs.py" in block.skip
]
SHOWN = ["b'user-7' {'page': 3} {'source': b'web'}", "lag=", "b'disk full'"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerServer]:
    with BrokerServer(tmp_path_factory.mktemp("broker")) as server:
        yield server


@pytest.mark.parametrize(("block", "shown"), list(zip(PROGRAMS, SHOWN, strict=True)), ids=str)
def test_a_program_of_the_page_does_what_it_says(
    broker: BrokerServer, tmp_path: Path, block: Block, shown: str
) -> None:
    assert PRINTED in block.text
    program = tmp_path / "program.py"
    program.write_text(block.text.replace(PRINTED, broker.hosts))
    done = subprocess.run(
        [sys.executable, str(program)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout

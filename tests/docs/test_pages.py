"""Whoever follows a page, in an empty folder, with an installed wheel, gets what it says."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.docs.conftest import alone
from tests.docs.pages import PAGES, blocks
from tests.docs.reader import Reader

pytestmark = pytest.mark.engines


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_everything_on_the_page_works_in_its_order(
    path: Path, tools: Path, shared: Path, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        reader = stack.enter_context(Reader(tmp_path, tools))
        if not reader.has_a_network:  # two readers would want the same ports
            stack.enter_context(alone(shared / "ports.lock"))
        try:
            for block in blocks(path):
                if block.runs:
                    reader.does(block)
            assert not reader.leaves(), "the page leaves something running"
        finally:
            print("\n".join(reader.told))

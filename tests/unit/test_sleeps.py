"""`make lint` finds a test that waits for time and does not say why."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lint.sleeps import findings, main

BAD = {
    "a sleep": "import time\ntime.sleep(1)",
    "a sleep by another name": "from time import sleep as rest\nrest(1)",
    "a sleep of a module by another name": "import time as t\nt.sleep(1)",
    "a sleep that somebody else calls": "import time\nThread(target=time.sleep)",
    "a sleep with a comment that gives no reason": "import time\ntime.sleep(1)  # a while",
    "a reason that is left empty": "import time\ntime.sleep(1)  # pause: ",
}

GOOD = """
import asyncio
import time
time.sleep(1)  # pause: the server is away so long
# pause: what a step takes
hook(lambda: time.sleep(1))
script = "import time; time.sleep(600)"
time.monotonic()
asyncio.sleep(1)
"""


@pytest.mark.parametrize("what", BAD)
def test_a_sleep_without_a_reason_is_refused(what: str, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(BAD[what])
    assert main([str(tmp_path)]) == 1
    assert [one.line for one in findings(tmp_path, BAD[what])] == [len(BAD[what].splitlines())]


def test_a_pause_with_a_reason_is_let_be(tmp_path: Path) -> None:
    assert findings(tmp_path, GOOD) == []

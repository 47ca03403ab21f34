"""The one line that says why a worker failed, from the real words of real interpreters."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.wire.causes import cause_of, comes_again

ROOT = Path(__file__).parents[3]
BUNDLE = "bundles/" + "0a" * 32 + "/files"


def told(folder: Path, files: dict[str, str], *command: str) -> str:
    """What is told of a program's end, its code unpacked as by an agent: stderr, then status."""
    place = folder / BUNDLE
    for name, text in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    done = subprocess.run(
        [sys.executable, *(command or (str(place / "train.py"),))],
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode
    return f"{done.stderr.strip()}\nit ended with status {done.returncode}"


def test_of_a_script_that_cannot_be_parsed_the_cause_has_its_file_and_line(tmp_path: Path) -> None:
    words = told(tmp_path, {"train.py": "import os\n\ndef main(:\n    pass\n"})
    assert cause_of(words).text == "SyntaxError: invalid syntax (train.py, line 3)"
    assert comes_again(words)


def test_of_a_module_that_cannot_be_parsed_the_cause_is_in_the_module(tmp_path: Path) -> None:
    files = {"train.py": "import parts.net\n", "parts/net.py": "x = 1\n    y = 2\n"}
    words = told(tmp_path, files)
    assert cause_of(words).text == "IndentationError: unexpected indent (parts/net.py, line 2)"
    assert comes_again(words)


def test_of_a_missing_import_and_of_a_missing_script_another_try_cannot_help(
    tmp_path: Path,
) -> None:
    words = told(tmp_path, {"train.py": "import json\nimport no_such_thing\n"})
    assert cause_of(words).text == (
        "ModuleNotFoundError: No module named 'no_such_thing' (train.py, line 2)"
    )
    assert comes_again(words)
    missing = told(tmp_path, {}, "nowhere.py")
    assert "can't open file" in cause_of(missing).text
    assert cause_of(missing).text.endswith("(status 2)")
    assert comes_again(missing)
    assert comes_again(told(tmp_path, {}, "-m", "no_such_module_at_all"))


def test_the_place_is_the_last_line_of_the_users_own_code_and_not_a_librarys(
    tmp_path: Path,
) -> None:
    text = "import json\n\ndef read():\n    return json.loads('{')\n\nread()\n"
    words = told(tmp_path, {"train.py": text})
    assert "JSONDecodeError: Expecting property name" in cause_of(words).text
    assert cause_of(words).text.endswith("(train.py, line 4)")
    assert not comes_again(words)


def test_of_a_chain_of_exceptions_the_last_one_is_the_cause(tmp_path: Path) -> None:
    text = "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise OSError('no disk') from e\n"
    assert (
        cause_of(told(tmp_path, {"train.py": text})).text == "OSError: no disk (train.py, line 4)"
    )


def test_of_a_group_of_exceptions_the_group_is_the_cause(tmp_path: Path) -> None:
    text = "raise ExceptionGroup('two', [ValueError('a'), TypeError('b')])\n"
    found = cause_of(told(tmp_path, {"train.py": text}))
    assert found.text == "ExceptionGroup: two (2 sub-exceptions) (train.py, line 1)"


def test_what_holdfast_refused_is_told_by_what_happened_and_its_remedy_after_it(
    tmp_path: Path,
) -> None:
    text = (
        "from holdfast.wire.errors import Usage\n"
        "raise Usage('no optimizer is tracked', why='nothing would change', fix='track it: x')\n"
    )
    words = told(tmp_path, {"train.py": text})
    found = cause_of(f"failed: {words}\n(worker 1; trying again cannot help)")
    assert found.text == "no optimizer is tracked (train.py, line 2)"
    assert (found.why, found.fix) == ("nothing would change", "track it: x")
    assert found.line == "no optimizer is tracked (train.py, line 2); fix: track it: x"


@pytest.mark.parametrize(
    "fact",
    [
        "it was ended by SIGSEGV",
        "it met its memory limit: it had 512.0 MB, the limit is 500 MB; raise `memory`",
        "it made no progress, and was killed",
        "it ended before the job was done",
    ],
)
def test_what_the_system_did_to_it_is_the_cause_whatever_it_said_last(fact: str) -> None:
    words = "Traceback (most recent call last):\n  File 'x', line 1\nValueError: logged, survived"
    assert cause_of(f"{words}\n{fact}").text == fact
    assert cause_of(f"{words}\n{fact}\n(worker 3; the job failed 3 times in a row)").text == fact


def test_a_message_of_many_lines_gives_its_first_one() -> None:
    words = (
        "Traceback (most recent call last):\n"
        '  File "/mine/train.py", line 7, in main\n'
        "    model.load_state_dict(state)\n"
        '  File "/x/lib/python3.12/site-packages/torch/nn/modules/module.py", line 2, in load\n'
        "    raise RuntimeError(text)\n"
        "RuntimeError: Error(s) in loading state_dict for Net:\n"
        "\tMissing key(s) in state_dict: a.\n"
        "it ended with status 1"
    )
    assert cause_of(words).text == (
        "RuntimeError: Error(s) in loading state_dict for Net: (/mine/train.py, line 7)"
    )

"""Which files of a folder belong into a bundle: those that git would take.

In a git checkout git itself is asked. Elsewhere the `.gitignore` files are read with pathspec, by
git's rules. What nobody wants on another machine stays away even if git does not ignore it, unless
git tracks it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from holdfast.wire.errors import Refused, TimedOut, Usage
from holdfast.wire.limits import BUNDLE_FILES_MAX

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

# Listing a large checkout takes git a second or two.
GIT_S: Final = 30.0

NEVER: Final = (".git", ".hg", ".svn")
UNWANTED: Final = frozenset(
    {
        "__pycache__",
        ".venv",
        "venv",
        "node_modules",
        ".mypy_cache",
        ".pytest_cache",
        ".ruff_cache",
        ".tox",
        ".ipynb_checkpoints",
        ".DS_Store",
    }
)


def selected(folder: Path) -> list[PurePosixPath]:
    """The files and links of a bundle, relative to the folder, sorted. Directories are implied."""
    if not folder.is_dir():
        raise Usage(f"{folder} is not a folder", fix="name the folder that holds your code")
    found = _by_git(folder) if _is_checkout(folder) else set(_by_rules(folder))
    kept = (path for path in found if not set(path.parts) & set(NEVER))
    return sorted(kept, key=str)


# --- git ------------------------------------------------------------------------------------


def _is_checkout(folder: Path) -> bool:
    """Whether git can say what belongs here: a checkout, and not a folder that it ignores."""
    if shutil.which("git") is None:
        return False
    inside = _git(folder, "rev-parse", "--is-inside-work-tree")
    if inside.returncode != 0 or inside.stdout.strip() != b"true":
        return False
    top = Path(os.fsdecode(_git(folder, "rev-parse", "--show-toplevel").stdout.rstrip(b"\n")))
    if top.resolve() == folder.resolve():
        return True
    return _git(top, "check-ignore", "--quiet", str(folder.resolve())).returncode != 0


def _by_git(folder: Path) -> set[PurePosixPath]:
    found = set()
    for path in _listed(folder, "--cached"):
        full = folder / path
        if full.is_dir() and not full.is_symlink():
            # A submodule is a checkout of its own.
            found |= {path / inner for inner in _by_git(full)} if _is_own_checkout(full) else set()
        elif os.path.lexists(full):
            found.add(path)
    for path in _listed(folder, "--others", "--exclude-standard"):
        full = folder / path
        # An untracked checkout inside this one is listed as a directory; git would not take it.
        if not set(path.parts) & UNWANTED and (full.is_symlink() or not full.is_dir()):
            found.add(path)
    return found


def _is_own_checkout(folder: Path) -> bool:
    return (folder / ".git").exists() and _is_checkout(folder)


def _listed(folder: Path, *options: str) -> Iterator[PurePosixPath]:
    done = _git(folder, "ls-files", "-z", *options)
    if done.returncode != 0:
        raise Refused(
            f"git cannot list the files of {folder}",
            why=os.fsdecode(done.stderr).strip()[:300],
            fix=f"git -C {folder} status",
        )
    for name in done.stdout.split(b"\0"):
        if name:
            yield PurePosixPath(os.fsdecode(name))


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    # Without the repository's own programs, and also when somebody else owns the checkout.
    options = ["-c", "core.fsmonitor=false", "-c", "safe.directory=*"]
    command = ["git", "-C", str(folder), *options, *arguments]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    try:
        return subprocess.run(
            command, capture_output=True, check=False, timeout=GIT_S, env=environment
        )
    except subprocess.TimeoutExpired as error:
        raise TimedOut(
            f"git did not list {folder} within {GIT_S:.0f} s", fix=f"git -C {folder} status"
        ) from error


# --- .gitignore files -----------------------------------------------------------------------


def _by_rules(folder: Path) -> Iterator[PurePosixPath]:
    yield from _walk(folder, PurePosixPath(), [])


def _walk(
    root: Path, at: PurePosixPath, rules: list[tuple[PurePosixPath, GitIgnoreSpec]]
) -> Iterator[PurePosixPath]:
    if len(at.parts) > 100:
        raise Usage(f"{root / at} is too deep", fix="move the code into fewer folders")
    here = root / at
    rules = [*rules, *_rules_of(here, at)]
    with os.scandir(here) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    if len(found) > BUNDLE_FILES_MAX:
        raise Usage(
            f"{here} has {len(found)} entries, more than a bundle may have",
            fix=f"add what is not code to {root / '.gitignore'}",
        )
    for entry in found:
        path = at / entry.name
        is_folder = entry.is_dir(follow_symlinks=False)
        if entry.name in UNWANTED or entry.name in NEVER or _ignored(path, is_folder, rules):
            continue
        if is_folder:
            yield from _walk(root, path, rules)
        else:
            yield path


def _rules_of(here: Path, at: PurePosixPath) -> list[tuple[PurePosixPath, GitIgnoreSpec]]:
    file = here / ".gitignore"
    if file.is_symlink() or not file.is_file():
        return []
    from pathspec import GitIgnoreSpec  # noqa: PLC0415  only for a folder without git

    lines = file.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    return [(at, GitIgnoreSpec.from_lines(lines))]


def _ignored(
    path: PurePosixPath, is_folder: bool, rules: list[tuple[PurePosixPath, GitIgnoreSpec]]
) -> bool:
    """The nearest file that has a word on it decides, and in it the last line, as in git."""
    for at, spec in reversed(rules):
        relative = str(path.relative_to(at)) + ("/" if is_folder else "")
        for pattern in reversed(spec.patterns):
            regex: re.Pattern[str] | None = getattr(pattern, "regex", None)
            if pattern.include is not None and regex is not None and _means(regex, relative):
                return pattern.include
    return False


def _means(regex: re.Pattern[str], relative: str) -> bool:
    """Whether a line means this very path. pathspec also lets it mean all that is below; git does
    not, and we never look below a folder that is ignored."""
    for found in regex.finditer(relative):
        if found.groupdict().get("ps_d") is not None:
            if found.start("ps_d") == len(relative) - 1:
                return True
        elif not (relative.endswith("/") and found.end() == len(relative)):
            # `a/**` means all that is in `a`, not `a` itself.
            return True
    return False

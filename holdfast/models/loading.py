"""From a version's record to something that answers: fetch its files, load it, check its example.

    folder = fetch(version, blobs, Path("cache"))
    servable = load(version, folder)
    check_example(servable, version, folder)
    outputs = servable.predict({"x": x})
    servable.close()

Everything here may run beside a busy server: files are read, hashed and copied where Python's lock
is free, in small pieces: whoever wakes up meanwhile never waits for a long call of the system.
Weights are mapped, not read. (Nobody says `sched_yield` between pieces: Linux takes a whole slice
of time for it, and beside one busy process a version would be fetched 25 times slower.)

    CACHE/versions/MODEL-N-DIGEST/…      the version's files; `code` leads to its bundle
    CACHE/bundles/…                      unpacked bundles; versions share them
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from pathlib import Path
from typing import Final

from holdfast.models import examples, kinds
from holdfast.models.kinds import Servable
from holdfast.models.records import Version
from holdfast.storage import Blobs, bundles
from holdfast.storage.parts import check_part
from holdfast.wire.errors import BadModel, Corrupt, HoldfastError
from holdfast.wire.limits import QUIET_PIECE_BYTES
from holdfast.wire.reports import Part

__all__ = ["Servable", "check_example", "discard", "fetch", "load", "place", "present"]

CODE: Final = "code"


def place(version: Version, folder: Path) -> Path:
    """Where `fetch` puts the version."""
    name = f"{version.model}-{version.number}-{version.publication.rpartition(':')[2][:16]}"
    return folder / "versions" / name


def fetch(version: Version, blobs: Blobs, folder: Path) -> Path:
    """The folder with the version's files and, under `code`, its bundle.

    Whole and verified, each time: what is there already is read once more, and what is damaged is
    fetched anew. Several may do it at once, and whoever is killed leaves nothing that is believed.
    `Missing` and `Corrupt` name the part.
    """
    target = place(version, folder)
    target.mkdir(parents=True, exist_ok=True)
    for name, part in version.files.items():
        _fetch_file(blobs, part, target / _checked(name), f"{version.model}@{version.number}")
    if version.bundle:
        code = bundles.unpack(blobs, version.bundle, folder / "bundles")
        _link(target / CODE, Path(os.path.relpath(code, target)))
    return target


def present(version: Version, folder: Path) -> bool:
    """Whether files of the right sizes are where `fetch` puts them; nobody has read them."""
    target = place(version, folder)
    try:
        sizes = {name: (target / _checked(name)).stat().st_size for name in version.files}
    except FileNotFoundError:
        return False
    whole = all(sizes[name] == part.size_bytes for name, part in version.files.items())
    return whole and (not version.bundle or (target / CODE).exists())


def load(version: Version, folder: Path, *, device: str | None = None) -> Servable:
    """The version, ready to predict, from the folder that `fetch` gave.

    `device` is for torch: by default the first GPU that is there. `BadModel` says what failed, with
    the last lines of the model's own traceback; `MissingExtra` which package to install.
    """
    return kinds.load(version, folder, folder / CODE, device)


def check_example(servable: Servable, version: Version, folder: Path) -> None:
    """Predict the version's examples, if it has any. `BadModel` with what differed, or failed."""
    what = kinds.label(version)
    for example in examples.read_all(folder, version.signature):
        try:
            found = servable.predict(example.inputs)
        except HoldfastError:
            raise
        except Exception as error:
            raise BadModel(
                f"{what} fails on its own example",
                why=f"{type(error).__name__}: {error}",
                fix="correct its code, and publish it again",
                story=kinds.last_lines(error),
            ) from error
        examples.compare(what, version.signature, example.outputs, found)


def discard(version: Version, folder: Path) -> None:
    """Remove the version's files from the cache; bundles stay. One that is loaded goes on."""
    target = place(version, folder)
    if target.exists():
        doomed = target.with_name(f".gone-{secrets.token_hex(8)}")
        target.rename(doomed)
        shutil.rmtree(doomed)


# --- private --------------------------------------------------------------------------------------


def _checked(name: str) -> str:
    if "/" in name or name.startswith(".") or name in (CODE, ""):
        raise Corrupt(f"a version has a file named {name!r}", fix="do not use this version")
    return name


def _fetch_file(blobs: Blobs, part: Part, path: Path, version: str) -> None:
    check_part(part)
    if _is_whole(path, part):
        return
    draft = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    try:
        with draft.open("xb") as file:
            for piece in blobs.stream(
                part.key, expect_digest=part.digest, piece_bytes=QUIET_PIECE_BYTES
            ):
                file.write(piece)
        # Never written in place: another process may have it mapped.
        draft.replace(path)
    except Corrupt as error:
        raise Corrupt(
            f"{path.name} of {version} is damaged in the store",
            why=f"{error.what}: {error.why}",
            fix=f"delete the part {part.key}, and publish the same again",
        ) from error
    finally:
        draft.unlink(missing_ok=True)


def _is_whole(path: Path, part: Part) -> bool:
    try:
        if path.stat().st_size != part.size_bytes:
            return False
        found = hashlib.sha256()
        with path.open("rb", buffering=0) as file:
            while piece := file.read(QUIET_PIECE_BYTES):
                found.update(piece)
    except FileNotFoundError:
        return False
    return f"sha256:{found.hexdigest()}" == part.digest


def _link(path: Path, target: Path) -> None:
    if path.is_symlink() and path.readlink() == target:
        return
    draft = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    draft.symlink_to(target)
    draft.replace(path)

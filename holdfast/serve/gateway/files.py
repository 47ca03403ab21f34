"""Files for Envoy: each appears whole, or not at all, by a move into its directory.

They are not forced to disk: a machine that crashed has lost its Envoy too, and the next gateway
writes all of them before it starts one.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec

from holdfast.serve.gateway.clusters import Json
from holdfast.wire import disk


def spelled(content: Mapping[str, object]) -> bytes:
    return msgspec.json.encode(content, order="sorted") + b"\n"


class Files:
    """The files of one gateway, under its folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: dict[str, Json] = {}

    @property
    def written(self) -> Mapping[str, Json]:
        """What was written last, by name."""
        return self._written

    def write(self, name: str, content: Json) -> None:
        """Envoy sees a move, and nothing else: a change in place it would not notice. `Full`: there
        is no room, and what was there stays."""
        self._draft(name, content)
        self._move(name, content)

    def write_all(self, contents: Mapping[str, Json]) -> None:
        """In this order; `Full`: there is no room for all of them, and what was there stays."""
        for name, content in contents.items():
            self._draft(name, content)
        for name, content in contents.items():
            self._move(name, content)

    def _draft(self, name: str, content: Json) -> None:
        unfinished = self._unfinished(name)
        with disk.room_for(unfinished):
            (self._folder / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        disk.draft(unfinished, spelled(content))

    def _move(self, name: str, content: Json) -> None:
        with disk.room_for(self._folder / name):
            self._unfinished(name).replace(self._folder / name)
        self._written[name] = content

    def _unfinished(self, name: str) -> Path:
        """Beside the directory, not in it: each move within it makes Envoy look."""
        directory = (self._folder / name).parent
        return directory.with_name(f"{directory.name}.draft")

    def adopt(self) -> None:
        """What lies there was written by an earlier gateway, and an Envoy uses it."""
        for path in self._folder.glob("?ds/**/*.json"):
            try:
                content = json.loads(path.read_bytes())
            except ValueError:
                continue  # somebody broke it: it is written anew
            if isinstance(content, dict) and "version_info" in content:
                self._written[str(path.relative_to(self._folder))] = content

    def remove(self, name: str) -> None:
        self._written.pop(name, None)
        shutil.rmtree((self._folder / name).parent, ignore_errors=True)

    def intact(self, name: str) -> bool:
        """Whether the file holds what was written."""
        try:
            return (self._folder / name).read_bytes() == spelled(self._written[name])
        except FileNotFoundError:
            return False

"""The blob store: what was put is there until it is removed, whoever crashes."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.train.members.effective import Record
from holdfast.wire.reports import Part


class Share(NamedTuple):
    """A part's content: a share of a state."""

    step: int
    value: int
    which: int  # of so many
    shares: int
    record: Record = ()  # from which step on each setting is in effect


class Manifest(NamedTuple):
    """What a checkpoint consists of."""

    step: int
    parts: tuple[Part, ...]


class Blobs:
    """Keys and what they hold. `put` is durable and whole, or it has not happened."""

    def __init__(self) -> None:
        self.held: dict[str, Share | Manifest] = {}
        self.lost: set[str] = set()  # manifests that cannot be read, until somebody mends the store

    def put(self, key: str, content: Share | Manifest) -> None:
        self.held[key] = content

    def remove(self, key: str) -> None:
        self.held.pop(key, None)

    def read_whole(self, manifest_key: str) -> tuple[int, int, Record] | str:
        """The state (step, value, settings) that a manifest gives; or, in words, why
        it cannot be read."""
        manifest = self.held.get(manifest_key)
        if not isinstance(manifest, Manifest):
            return f"there is no manifest {manifest_key}"
        shares: dict[int, Share] = {}
        for part in manifest.parts:
            share = self.held.get(part.key)
            if not isinstance(share, Share):
                return f"part {part.key} is missing"
            shares[share.which] = share
        found = {(one.step, one.value, one.shares, one.record) for one in shares.values()}
        if len(found) != 1:
            return f"its parts are of different states: {sorted(found)}"
        step, value, count, record = found.pop()
        if step != manifest.step:
            return f"its parts are of step {step}"
        if sorted(shares) != list(range(count)):
            return f"it has the shares {sorted(shares)} of {count}"
        return step, value, record

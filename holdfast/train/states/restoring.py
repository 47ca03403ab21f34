"""Reading a committed checkpoint back."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Final

from holdfast.storage import Blobs, read_part
from holdfast.storage.manifests import read_manifest
from holdfast.train.states.sharing import Assembly
from holdfast.train.states.state import State
from holdfast.wire.errors import Corrupt

# Parts that are read at a time.
PART_READERS: Final = 4


def restore(blobs: Blobs, manifest: str, job: str, step: int) -> State:
    """The state of this checkpoint, every byte verified. `Corrupt` or `Missing`: it is lost; any
    other error: not now."""
    found = read_manifest(blobs, manifest)
    if (found.job, found.step) != (job, step):
        raise Corrupt(
            f"{manifest!r} is not the checkpoint of step {step} of job {job!r}",
            why=f"it is that of step {found.step} of job {found.job!r}",
            fix="use an older checkpoint",
        )
    assembly = Assembly()
    parts = [part for _, part in found.parts()]
    with ThreadPoolExecutor(PART_READERS, thread_name_prefix="holdfast-read") as pool:
        for data in pool.map(lambda part: read_part(blobs, part), parts):
            assembly.add(data)
    state = assembly.state()
    if state.step != step:
        raise Corrupt(
            f"the notes of step {step} say step {state.step}", fix="use an older checkpoint"
        )
    return state

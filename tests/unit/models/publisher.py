"""A process that publishes; it may be killed on its way: `python -m tests.unit.models.publisher`.

    publisher PLANE STORE CODE WHEN

WHEN is "never", "before" or "after": it kills itself before or after it has written the record.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from holdfast.coordination import connect
from holdfast.models.drafts import VersionDraft
from holdfast.models.records import ModelKind, Signature, TensorSpec
from holdfast.models.registry import Registry
from holdfast.storage import Blobs, bundles, open_store


class Doomed(Registry):
    """Dies at its commit."""

    when = "never"

    def _publish(self, *given: Any) -> Any:
        if self.when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        version = super()._publish(*given)
        if self.when == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return version


def draft_of(blobs: Blobs, code: Path) -> VersionDraft:
    """A draft for whose sake nobody has to import torch."""
    code.mkdir(exist_ok=True)
    (code / "double.py").write_text("def double(inputs):\n    return inputs['x'] * 2\n")
    signature = Signature((TensorSpec("x", "FP32", (-1,)),), (TensorSpec("y", "FP32", (-1,)),))
    files = {"a.bin": b"some bytes", "b.bin": b"others"}
    bundle = bundles.push(blobs, code).digest
    given: dict[str, Any] = {"bundle": bundle, "entry": "double:double", "job": "train"}
    return VersionDraft("digits", ModelKind.FUNCTION, signature, files, step=8, **given)


def main(plane: str, store: str, code: str, when: str) -> None:
    blobs = open_store(store)
    draft = draft_of(blobs, Path(code))
    with connect(plane) as session:
        registry = Doomed(session, blobs, "a publisher")
        registry.when = when
        print(registry.publish(draft).number, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

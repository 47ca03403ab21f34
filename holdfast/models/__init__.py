"""Models: versions that never change, and aliases that move.

- `records`, `drafts`            values: a version, its signature, an alias; no I/O
- `catalogue`, `registry`        reading and changing what is published, in the coordination plane
- `loading`                      a version's files, loaded: `fetch`, `load`, `check_example`
- `importing`                    a bundle's code in an import space of its own
- `kinds`, `torch_kind`          what is code: torch, python, function; each predicts
- `files_kind`, `*_kind`         what is files: onnx, exported, sklearn, ...; one module each
- `apart`, `apart_process`       what runs a pickle, computed by a process of its own
- `examples`, `describing`       batches with their outputs; from them a signature
- `datatypes`                    names of types; str or bytes: what a model sees of BYTES
- `making`, `publishing`         from files and code to a version that was loaded once
- `elsewhere`                    the same of files in a bucket, and from a worker: `models.publish`
- `differences`, `exporting`     for people: what changed, and plain files

It imports `coordination`, `storage` and `wire`. numpy, torch, safetensors and onnxruntime are
imported only by the modules that need them: reading the registry needs none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.models.elsewhere import publish

__all__ = ["publish"]


def __getattr__(name: str) -> object:
    if name != "publish":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Not at the top: whoever reads the registry waits for none of it.
    from holdfast.models.elsewhere import publish  # noqa: PLC0415

    return publish

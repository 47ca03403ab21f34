"""Versions that give themselves away: every answer is the number that the version was made with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import numpy as np
from safetensors.numpy import save

from bench.serving.replies import Reply, anything
from holdfast.cluster import Cluster
from holdfast.coordination import Session
from holdfast.models.drafts import VersionDraft
from holdfast.models.records import EXAMPLE, ModelKind, Signature, TensorSpec
from holdfast.models.registry import Registry
from holdfast.storage import bundles

MODEL: Final = "answer"
BODY: Final = b'{"x": [[1.0, 2.0]]}'

_CODE: Final = '''
import numpy as np

calls = 0

def answer(inputs, number=0, trouble=""):
    """Its own number for every row. Trouble: it cannot be loaded, or fails once it is in use."""
    global calls
    if trouble == "unloadable":
        raise RuntimeError("this version was made to fail")
    calls += 1
    rows = len(inputs["x"])
    if trouble == "worse" and float(inputs["x"][0, 0]) != 0.0:
        raise RuntimeError("this version fails on real requests")
    return {"y": np.full((rows, 1), float(number), dtype=np.float32)}
'''


def right(reply: Reply) -> str:
    """What is wrong with a reply; empty: it was answered by the version that it names."""
    wrong = anything(reply)
    if wrong:
        return wrong
    said = json.loads(reply.body)["y"][0][0]
    return "" if said == float(reply.version) else f"version {reply.version} answered {said}"


class Publisher:
    """Publishes one version after the other."""

    def __init__(self, cluster: Cluster, session: Session, folder: Path) -> None:
        self._registry = Registry(session, cluster.blobs(), "proof")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "answers.py").write_text(_CODE)
        self._bundle = bundles.push(cluster.blobs(), folder).digest
        self._newest = 0

    def publish(self, trouble: str = "") -> int:
        """The number of a new version, which is also its answer."""
        number = self._newest + 1
        # What is worse does well on its example: only requests tell.
        example = {
            "input.x": np.zeros((2, 2), dtype=np.float32),
            "output.y": np.full((2, 1), float(number), dtype=np.float32),
        }
        signature = Signature(
            (TensorSpec("x", "FP32", (-1, 2)),), (TensorSpec("y", "FP32", (-1, 1)),)
        )
        draft = VersionDraft(
            MODEL,
            ModelKind.FUNCTION,
            signature,
            {EXAMPLE: save(example)},
            bundle=self._bundle,
            entry="answers:answer",
            arguments={"number": number, "trouble": trouble},
        )
        version = self._registry.publish(draft)
        assert version.number == number, (version.number, number)
        self._newest = number
        return number


def publish_function(
    cluster: Cluster,
    session: Session,
    folder: Path,
    model: str,
    code: str,
    signature: Signature,
) -> int:
    """The version of a model that is the function `predict` of this code; its folder is new."""
    folder.mkdir(parents=True)
    (folder / f"{model}.py").write_text(code)
    bundle = bundles.push(cluster.blobs(), folder).digest
    draft = VersionDraft(model, ModelKind.FUNCTION, signature, {}, bundle, f"{model}:predict", {})
    return Registry(session, cluster.blobs(), "proof").publish(draft).number

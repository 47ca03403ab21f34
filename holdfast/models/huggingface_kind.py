"""A folder as Hugging Face keeps models: safetensors, `config.json`, a tokenizer or an image
processor; computed by a pipeline of `transformers`.

| task | takes | gives |
|---|---|---|
| text-classification | `text` | `label`, `score`, `scores` (of all labels, by their ids) |
| feature-extraction | `text` | `embedding`: the mean of the tokens' last hidden states |
| text-generation | `text` | `generated`: what follows it |
| image-classification | `image`: pixels [rows, height, width, 3], or files as bytes | the same |

Nothing is fetched from anywhere, no code of the folder runs, and weights that are pickles are
refused. The task comes from the configuration; `arguments={"task": ...}` says another, and other
arguments (`max_new_tokens`) are the pipeline's own.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from holdfast.models.files_kind import Array, Gathered, KnownFiles, only, shaped
from holdfast.models.records import ModelKind, Signature, Version
from holdfast.models.torch_kind import chosen_device
from holdfast.system.extras import require_extra
from holdfast.wire.errors import BadModel, Refused, Usage

# Tokens that a model of texts writes unless it is told otherwise: a sentence or two.
GENERATED_TOKENS: Final = 64

FILE: Final = "config.json"
_EXTRA: Final = "huggingface"
# What such a folder may have that is only data; all else is left where it is.
_DATA: Final = (".json", ".safetensors", ".txt", ".model", ".jinja")
_PICKLES: Final = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
_TASKS: Final = {
    "ForSequenceClassification": "text-classification",
    "ForImageClassification": "image-classification",
    "ForCausalLM": "text-generation",
    "LMHeadModel": "text-generation",
    "Model": "feature-extraction",
}
_CLASSES: Final = {
    "text-classification": "AutoModelForSequenceClassification",
    "image-classification": "AutoModelForImageClassification",
    "text-generation": "AutoModelForCausalLM",
    "feature-extraction": "AutoModel",
}


def gather(path: Path) -> Gathered:
    config = _config(path)
    files = {each.name: each for each in sorted(path.iterdir()) if each.is_file()}
    if not any(name.endswith(".safetensors") for name in files):
        pickles = [name for name in files if name.endswith(_PICKLES)]
        raise Refused(
            f"{path.name} has no weights as safetensors",
            why=f"{', '.join(pickles)} is a pickle: a program" if pickles else "there are none",
            fix="save it with model.save_pretrained(FOLDER), which writes model.safetensors",
        )
    if "auto_map" in config:
        raise Refused(
            f"{path.name} is a model with code of its own (auto_map)",
            why="code of a folder is not run here",
            fix="publish it as the kind torch or python: --code DIR --entry MODULE:NAME",
        )
    return Gathered(
        ModelKind.HUGGINGFACE,
        {name: each for name, each in files.items() if name.endswith(_DATA)},
        arguments={"task": task_of(config)},
    )


def load(version: Version, folder: Path, device: str | None) -> PipelineServable:
    arguments = dict(version.arguments)
    task = str(arguments.pop("task", "") or task_of(_config(folder)))
    return PipelineServable(version.signature, folder, task, arguments, device)


def known(folder: Path, arguments: Mapping[str, Any]) -> KnownFiles:
    task = str(arguments.get("task") or task_of(_config(folder)))
    if task == "image-classification":
        pixels = np.zeros((2, 32, 32, 3), np.uint8)
        return KnownFiles({"image": pixels}, {"image": {1: "", 2: ""}})
    return KnownFiles({"text": np.array(["one text", "another, longer text"], object)})


def lines(version: Version) -> list[str]:
    task = version.arguments.get("task", "")
    return ["from transformers import pipeline", f'model = pipeline("{task}", model=".")']


def task_of(config: Mapping[str, Any]) -> str:
    """The pipeline that the model was made for."""
    for architecture in config.get("architectures") or ():
        for ending, task in _TASKS.items():
            if str(architecture).endswith(ending):
                return task
    raise Usage(
        f"it is not known what {config.get('architectures')} is for",
        why=f"known are {', '.join(_CLASSES)}",
        fix="""say it: --arguments '{"task": "text-classification"}'""",
    )


class PipelineServable:
    """A model, what prepares its inputs, and what makes arrays of its answers."""

    def __init__(
        self,
        signature: Signature,
        folder: Path,
        task: str,
        options: Mapping[str, Any],
        device: str | None,
    ) -> None:
        if task not in _CLASSES:
            raise BadModel(f"there is no task {task!r}", fix=f"one of {', '.join(_CLASSES)}")
        os.environ["HF_HUB_OFFLINE"] = "1"
        transformers = require_extra("transformers", _EXTRA)
        common = {"local_files_only": True, "trust_remote_code": False}
        model = getattr(transformers, _CLASSES[task]).from_pretrained(
            folder, use_safetensors=True, **common
        )
        images = task == "image-classification"
        if images:
            require_extra("PIL", _EXTRA)
            loader, role = transformers.AutoImageProcessor, "image_processor"
        else:
            loader, role = transformers.AutoTokenizer, "tokenizer"
        helper = loader.from_pretrained(folder, **common)
        self._signature = signature
        self._pipeline = transformers.pipeline(
            task, model=model, device=chosen_device(device), **{role: helper}
        )
        self._labels = dict(getattr(model.config, "id2label", None) or {})
        compute: dict[str, Callable[[list[Any]], dict[str, Any]]] = {
            "text-classification": self._classified,
            "image-classification": self._classified,
            "text-generation": self._generated,
            "feature-extraction": self._embedded,
        }
        self._compute = compute[task]
        self._options = dict(options)
        self._read = _images if images else _texts

    def predict(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        return shaped(self._signature, self._compute(self._read(only(inputs))))

    def close(self) -> None:
        del self._pipeline, self._compute

    def _classified(self, given: list[Any]) -> dict[str, Any]:
        every = len(self._labels)
        found = self._pipeline(given, top_k=every, batch_size=len(given), **self._options)
        best = [max(row, key=lambda each: each["score"]) for row in found]
        order = [self._labels[number] for number in sorted(self._labels)]
        by_label = [{each["label"]: each["score"] for each in row} for row in found]
        return {
            "label": np.array([each["label"] for each in best], object),
            "score": np.array([each["score"] for each in best], np.float32),
            "scores": np.array([[row[label] for label in order] for row in by_label], np.float32),
        }

    def _generated(self, given: list[Any]) -> dict[str, Any]:
        options = {"max_new_tokens": GENERATED_TOKENS, "do_sample": False, **self._options}
        found = [self._pipeline(text, return_full_text=False, **options)[0] for text in given]
        return {"generated": np.array([each["generated_text"] for each in found], object)}

    def _embedded(self, given: list[Any]) -> dict[str, Any]:
        found = [np.asarray(self._pipeline(text, **self._options))[0] for text in given]
        return {"embedding": np.array([each.mean(0) for each in found], np.float32)}


def _texts(array: Array) -> list[Any]:
    return [each if isinstance(each, str) else bytes(each).decode() for each in array.reshape(-1)]


def _images(array: Array) -> list[Any]:
    """Pixels, or whole files, as images."""
    images = require_extra("PIL.Image", _EXTRA)
    if array.dtype.kind in "OS":
        return [images.open(io.BytesIO(bytes(each))).convert("RGB") for each in array.reshape(-1)]
    return [images.fromarray(np.ascontiguousarray(each)).convert("RGB") for each in array]


def _config(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / FILE).read_text())
    except (OSError, ValueError) as error:
        raise BadModel(
            f"{folder.name} is not a Hugging Face model",
            why=f"its {FILE} cannot be read: {error}",
            fix="name the folder that model.save_pretrained(FOLDER) wrote",
        ) from error
    if not isinstance(found, dict):
        raise BadModel(f"{FILE} of {folder.name} is not an object", fix="save the model again")
    return found

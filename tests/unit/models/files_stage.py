"""Small models of the kinds that are files, written by the packages that make them."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn


def require_package(name: str) -> Any:
    """The package, or a skipped test that says how to have it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        pytest.skip(f"needs the package {name}, which is not installed: pip install {name}")


def some_rows(rows: int = 20) -> np.ndarray[Any, Any]:
    return np.random.default_rng(3).normal(size=(rows, 4)).astype(np.float32)


class Net(nn.Module):
    """Rows of any length, and a factor."""

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": x * scale, "sum": x.sum(1)}


def torchscript(folder: Path) -> Path:
    path = folder / "net.pt"
    example = (torch.ones(3, 4), torch.ones(3, 1))
    torch.jit.trace(Net(), example, strict=False).save(str(path))
    return path


def exported(folder: Path) -> Path:
    path = folder / "net.pt2"
    rows, width = torch.export.Dim("rows"), torch.export.Dim("width")
    program = torch.export.export(
        Net(),
        (torch.ones(3, 4),),
        {"scale": torch.ones(3, 1)},
        dynamic_shapes={"x": {0: rows, 1: width}, "scale": {0: rows}},
    )
    torch.export.save(program, path)
    return path


def classifier() -> Any:
    linear = require_package("sklearn.linear_model")
    rows = some_rows()
    words = np.array(["low", "high"])[(rows.sum(1) > 0).astype(int)]
    return linear.LogisticRegression().fit(rows, words)


def skops(folder: Path) -> Path:
    path = folder / "iris.skops"
    require_package("skops.io").dump(classifier(), path)
    return path


def joblib(folder: Path) -> Path:
    path = folder / "iris.joblib"
    require_package("joblib").dump(classifier(), path)
    return path


def xgboost(folder: Path) -> Path:
    package = require_package("xgboost")
    rows = some_rows()
    data = package.DMatrix(rows, rows.sum(1))
    path = folder / "trees.ubj"
    package.train({"max_depth": 2, "nthread": 1}, data, 3).save_model(path)
    return path


def lightgbm(folder: Path) -> Path:
    package = require_package("lightgbm")
    rows = some_rows()
    data = package.Dataset(rows, rows.sum(1))
    options = {"objective": "regression", "min_data_in_leaf": 2, "verbose": -1, "num_threads": 1}
    path = folder / "trees.txt"
    package.train(options, data, 3).save_model(path)
    return path


def bert(folder: Path) -> Path:
    """Two layers that were never trained, and a tokenizer of a few words."""
    transformers = require_package("transformers")
    tokenizers = require_package("tokenizers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "one", "text", "another", "good", "bad"]
    level = tokenizers.models.WordLevel({w: n for n, w in enumerate(words)}, unk_token="[UNK]")
    plain = tokenizers.Tokenizer(level)
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    path = folder / "bert"
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]"}
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, model_max_length=16, **special
    ).save_pretrained(path)
    torch.manual_seed(1)
    config = transformers.BertConfig(
        vocab_size=len(words),
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=32,
        id2label={0: "bad", 1: "good", 2: "odd"},
        label2id={"bad": 0, "good": 1, "odd": 2},
    )
    transformers.BertForSequenceClassification(config).save_pretrained(path)
    return path


def vit(folder: Path) -> Path:
    transformers = require_package("transformers")
    require_package("PIL")
    path = folder / "vit"
    torch.manual_seed(1)
    config = transformers.ViTConfig(
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=8,
        patch_size=4,
        id2label={0: "cat", 1: "dog"},
        label2id={"cat": 0, "dog": 1},
    )
    transformers.ViTForImageClassification(config).save_pretrained(path)
    processor = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": 8, "width": 8},
        "do_normalize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "do_rescale": True,
        "rescale_factor": 1 / 255,
    }
    (path / "preprocessor_config.json").write_text(json.dumps(processor))
    return path


def mlflow_folder(folder: Path, flavor: str, key: str, inner: Path) -> Path:
    """A folder as MLflow writes it, around a model of a format that we know."""
    path = folder / "logged"
    path.mkdir()
    inner.rename(path / inner.name)
    flavors = {flavor: {key: inner.name}, "python_function": {"loader_module": f"mlflow.{flavor}"}}
    (path / "MLmodel").write_text(json.dumps({"flavors": flavors}))  # JSON is YAML
    return path

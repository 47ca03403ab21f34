"""Models that are files: published, loaded, computed, exported; and what is wrong is refused."""

from __future__ import annotations

import importlib
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from holdfast.models import publishing
from holdfast.models.apart import SeparateModel
from holdfast.models.exporting import export
from holdfast.models.files_kind import files_kind
from holdfast.models.loading import check_example, fetch, load
from holdfast.models.publishing import VersionFiles
from holdfast.models.records import CODE_KINDS, ModelKind, Version
from holdfast.models.registry import Registry
from holdfast.storage import Blobs
from holdfast.wire.errors import BadModel, HoldfastError, MissingExtra, ModelFailed, Refused, Usage
from tests.unit.models import files_stage
from tests.unit.models.files_stage import require_package, some_rows

pytestmark = pytest.mark.engines  # large packages are imported, here and in other processes

PAIR = {"x": some_rows(2), "scale": np.full((2, 1), 3, np.float32)}
Made = Callable[[Path], Path]


def published(
    registry: Registry, blobs: Blobs, made: Made, tmp_path: Path, **more: Any
) -> tuple[Version, Path]:
    version = publishing.publish(registry, blobs, VersionFiles("it", source=made(tmp_path), **more))
    return version, fetch(version, blobs, tmp_path / "cache")


@pytest.mark.parametrize(
    ("made", "kind", "examples", "shapes"),
    [
        (files_stage.torchscript, ModelKind.TORCHSCRIPT, [PAIR], [(-1, 4), (-1, 1)]),
        (files_stage.exported, ModelKind.EXPORTED, [], [(-1, -1), (-1, 1)]),
        (files_stage.skops, ModelKind.SKLEARN, [], [(-1, 4)]),
        (files_stage.xgboost, ModelKind.XGBOOST, [], [(-1, 4)]),
        (files_stage.lightgbm, ModelKind.LIGHTGBM, [], [(-1, 4)]),
        (files_stage.bert, ModelKind.HUGGINGFACE, [], [(-1,)]),
        (files_stage.vit, ModelKind.HUGGINGFACE, [], [(-1, -1, -1, 3)]),
    ],
    ids=["torchscript", "exported", "sklearn", "xgboost", "lightgbm", "bert", "vit"],
)
def test_a_model_of_files_is_published_loaded_and_exported(
    registry: Registry,
    blobs: Blobs,
    tmp_path: Path,
    made: Made,
    kind: ModelKind,
    examples: list[Any],
    shapes: list[tuple[int, ...]],
) -> None:
    version, folder = published(registry, blobs, made, tmp_path, examples=examples)
    assert version.kind is kind
    assert version.signature.batches
    assert [spec.shape for spec in version.signature.inputs] == shapes
    servable = load(version, folder)
    check_example(servable, version, folder)
    servable.close()
    again = publishing.publish(
        registry, blobs, VersionFiles("it", source=next_to(tmp_path, version), examples=examples)
    )
    assert again.number == version.number
    export(version, blobs, tmp_path / "out")
    readme = (tmp_path / "out" / "README.txt").read_text().partition("To load it:")[2]
    script = "\n".join(line.strip() for line in readme.splitlines())
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        cwd=tmp_path / "out",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def next_to(tmp_path: Path, version: Version) -> Path:
    """What was published, where its maker wrote it."""
    every = [path for path in tmp_path.iterdir() if path.name not in ("cache", "store", "out")]
    (found,) = every
    return found


def test_what_a_model_of_files_computes_is_what_its_maker_computes(
    registry: Registry, blobs: Blobs, tmp_path: Path
) -> None:
    version, folder = published(registry, blobs, files_stage.exported, tmp_path)
    servable = load(version, folder)
    for width in (2, 6):
        x = np.random.default_rng(width).normal(size=(3, width)).astype(np.float32)
        found = servable.predict({"x": x, "scale": np.full((3, 1), 2, np.float32)})
        np.testing.assert_allclose(found["y"], x * 2, rtol=1e-6)
        np.testing.assert_allclose(found["sum"], x.sum(1), rtol=1e-5)
    assert version.signature.inputs[0].dims[0] == version.signature.inputs[1].dims[0] != ""


def test_an_estimator_gives_its_labels_as_texts(
    registry: Registry, blobs: Blobs, tmp_path: Path
) -> None:
    version, folder = published(registry, blobs, files_stage.skops, tmp_path)
    found = load(version, folder).predict({"x": some_rows().astype(np.float64)})
    assert found["predict"].tolist() == files_stage.classifier().predict(some_rows()).tolist()
    assert found["predict_proba"].shape == (20, 2)
    assert [spec.text for spec in version.signature.outputs] == [True, None]


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.pt", b"nothing", "is not a TorchScript archive"),
        ("a.pt2", b"nothing", "is not a program of torch.export"),
        ("a.skops", b"nothing", "model.skops cannot be loaded"),
        ("a.ubj", b"nothing", "is not an XGBoost model"),
        ("a.json", b"{}", "model.json cannot be loaded"),
        ("a.txt", b"nothing", "is not a LightGBM model"),
        ("a.txt", b"tree\nversion=v4\n", "is not a LightGBM model"),
        ("a.onnx", b"nothing", "model.onnx cannot be loaded"),
    ],
)
def test_a_damaged_file_is_refused_with_a_sentence(
    registry: Registry, blobs: Blobs, tmp_path: Path, name: str, data: bytes, words: str
) -> None:
    package = {".skops": "skops", ".json": "xgboost"}.get(Path(name).suffix)
    if package:
        require_package(package)
    (tmp_path / name).write_bytes(data)
    with pytest.raises(BadModel, match=words) as refused:
        publishing.publish(registry, blobs, VersionFiles("it", source=tmp_path / name))
    assert refused.value.fix
    assert registry.model("it") is None


def test_a_file_of_torch_save_is_told_from_torchscript(
    registry: Registry, blobs: Blobs, tmp_path: Path
) -> None:
    torch.save(files_stage.Net(), tmp_path / "net.pt")
    with pytest.raises(BadModel) as refused:
        publishing.publish(registry, blobs, VersionFiles("it", source=tmp_path / "net.pt"))
    assert "that is a pickle" in refused.value.why


class Trap:
    """A pickle that writes a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


def test_a_pickle_inside_an_exported_program_is_found_and_not_run(
    registry: Registry, blobs: Blobs, tmp_path: Path
) -> None:
    import zipfile

    whole = files_stage.exported(tmp_path)
    bad, sprung = tmp_path / "bad.pt2", tmp_path / "sprung"
    trap = tmp_path / "trap"
    torch.save((Trap(sprung), {}), trap)
    with zipfile.ZipFile(whole) as old, zipfile.ZipFile(bad, "w") as new:
        for name in old.namelist():
            sample = name.endswith("sample_inputs/model.pt")
            new.writestr(name, trap.read_bytes() if sample else old.read(name))
    with pytest.raises(Refused, match="runs a pickle"):
        publishing.publish(registry, blobs, VersionFiles("it", source=bad))
    assert not sprung.exists()


def test_a_pickle_is_refused_unless_somebody_says_that_it_may_run(
    registry: Registry, blobs: Blobs, tmp_path: Path
) -> None:
    sprung = tmp_path / "sprung"
    (tmp_path / "trap.pkl").write_bytes(pickle.dumps(Trap(sprung)))
    with pytest.raises(Refused) as refused:
        publishing.publish(registry, blobs, VersionFiles("it", source=tmp_path / "trap.pkl"))
    assert "--allow-pickle" in refused.value.fix
    assert not sprung.exists()


@pytest.fixture
def pickled(registry: Registry, blobs: Blobs, tmp_path: Path) -> tuple[Version, Path]:
    given = {"allow_pickle": True, "examples": [{"x": some_rows(3)}]}
    return published(registry, blobs, files_stage.joblib, tmp_path, **given)


def test_a_pickle_that_may_run_computes_in_a_process_of_its_own(
    pickled: tuple[Version, Path], blobs: Blobs, tmp_path: Path
) -> None:
    version, folder = pickled
    assert version.arguments == {"allow_pickle": True}
    assert [spec.text for spec in version.signature.outputs] == [True, None]
    servable = load(version, folder)
    assert isinstance(servable, SeparateModel)
    check_example(servable, version, folder)
    expected = files_stage.classifier().predict(some_rows()).tolist()
    assert servable.predict({"x": some_rows()})["predict"].tolist() == expected
    with pytest.raises(ModelFailed, match=r"ValueError: .*3 features"):
        servable.predict({"x": np.ones((1, 3), np.float32)})
    pid = servable.pid
    servable.close()
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    export(version, blobs, tmp_path / "out")
    assert "a pickle: it runs code" in (tmp_path / "out" / "README.txt").read_text()


def test_a_process_that_ends_fails_one_request_with_a_sentence_and_is_started_again(
    pickled: tuple[Version, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    version, folder = pickled
    servable = load(version, folder)
    assert isinstance(servable, SeparateModel)
    try:
        first = servable.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        with pytest.raises(ModelFailed) as failed:
            servable.predict({"x": some_rows()})
        assert failed.value.why == "it ended with signal 9"
        monkeypatch.setattr("holdfast.models.apart.APART_RESTART_S", 0.0)
        servable._not_before_s = 0.0
        assert len(servable.predict({"x": some_rows()})["predict"]) == 20
        assert servable.pid != first
    finally:
        servable.close()


def test_a_pickle_that_ends_its_process_while_it_is_loaded_is_a_bad_model(
    registry: Registry, blobs: Blobs, tmp_path: Path
) -> None:
    class Ends:
        def __reduce__(self) -> Any:
            return (os._exit, (7,))

    (tmp_path / "ends.pkl").write_bytes(pickle.dumps(Ends()))
    given = VersionFiles(
        "it", source=tmp_path / "ends.pkl", allow_pickle=True, examples=[{"x": some_rows(2)}]
    )
    with pytest.raises(BadModel, match="ends its process") as refused:
        publishing.publish(registry, blobs, given)
    assert refused.value.why == "it ended with status 7"


def test_a_type_that_nobody_trusts_is_named(
    registry: Registry, blobs: Blobs, tmp_path: Path
) -> None:
    skops = require_package("skops.io")
    preprocessing = require_package("sklearn.preprocessing")
    path = tmp_path / "odd.skops"
    skops.dump(preprocessing.FunctionTransformer(os.path.basename), path)
    with pytest.raises(Refused, match="nobody has said to trust") as refused:
        publishing.publish(registry, blobs, VersionFiles("it", source=path))
    assert "trusted" in refused.value.fix


def test_a_hugging_face_folder_answers_as_its_pipeline_does(
    registry: Registry, blobs: Blobs, tmp_path: Path
) -> None:
    version, folder = published(registry, blobs, files_stage.bert, tmp_path)
    transformers = require_package("transformers")
    texts = ["one good text", "bad", "another odd one text"]
    found = load(version, folder).predict({"text": np.array(texts, object)})
    asked = transformers.pipeline("text-classification", model=str(tmp_path / "bert"))(texts)
    assert found["label"].tolist() == [each["label"] for each in asked]
    np.testing.assert_allclose(found["score"], [each["score"] for each in asked], rtol=1e-4)
    assert found["scores"].shape == (3, 3)
    assert version.arguments == {"task": "text-classification"}


def test_an_image_may_come_as_pixels_or_as_a_file(
    registry: Registry, blobs: Blobs, tmp_path: Path
) -> None:
    import io

    version, folder = published(registry, blobs, files_stage.vit, tmp_path)
    pixels = np.random.default_rng(0).integers(0, 255, (1, 11, 17, 3)).astype(np.uint8)
    by_pixels = load(version, folder).predict({"image": pixels})
    held = io.BytesIO()
    require_package("PIL.Image").fromarray(pixels[0]).save(held, "png")
    example = np.empty(1, object)
    example[0] = held.getvalue()
    given = VersionFiles("files", source=tmp_path / "vit", examples=[{"image": example}])
    other = publishing.publish(registry, blobs, given)
    servable = load(other, fetch(other, blobs, tmp_path / "cache"))
    by_file = servable.predict({"image": example})
    np.testing.assert_allclose(by_pixels["scores"], by_file["scores"], rtol=1e-5)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"config.json": "{}", "pytorch_model.bin": ""}, "no weights as safetensors"),
        ({"config.json": '{"auto_map": {}}', "model.safetensors": ""}, "code of its own"),
        ({"config.json": "[", "model.safetensors": ""}, "is not a Hugging Face model"),
        ({"config.json": '{"architectures": ["Odd"]}', "model.safetensors": ""}, "not known what"),
        ({"MLmodel": "flavors: {keras: {}}"}, "has the flavors keras"),
        ({"MLmodel": "nothing"}, "is not a model folder of MLflow"),
    ],
)
def test_a_folder_that_cannot_be_served_is_refused_with_a_sentence(
    registry: Registry, blobs: Blobs, tmp_path: Path, files: dict[str, str], words: str
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    with pytest.raises(HoldfastError, match=words) as refused:
        publishing.publish(registry, blobs, VersionFiles("it", source=folder))
    assert refused.value.fix


@pytest.mark.parametrize(
    ("made", "flavor", "key", "kind"),
    [
        (files_stage.xgboost, "xgboost", "data", ModelKind.XGBOOST),
        (files_stage.lightgbm, "lightgbm", "data", ModelKind.LIGHTGBM),
        (files_stage.skops, "sklearn", "pickled_model", ModelKind.SKLEARN),
    ],
)
def test_a_folder_of_mlflow_becomes_a_model_of_a_kind_that_we_know(
    registry: Registry,
    blobs: Blobs,
    tmp_path: Path,
    made: Made,
    flavor: str,
    key: str,
    kind: ModelKind,
) -> None:
    folder = files_stage.mlflow_folder(tmp_path, flavor, key, made(tmp_path))
    version = publishing.publish(registry, blobs, VersionFiles("it", source=folder))
    assert version.kind is kind
    assert not version.arguments


def test_a_python_function_of_mlflow_is_a_pickle_and_runs_apart_where_that_was_said(
    registry: Registry, blobs: Blobs, tmp_path: Path
) -> None:
    pyfunc = require_package("mlflow.pyfunc")
    require_package("pandas")

    class Doubles(pyfunc.PythonModel):  # type: ignore[misc,name-defined]
        def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:
            return model_input * 2

    folder = tmp_path / "logged"
    pyfunc.save_model(str(folder), python_model=Doubles(), pip_requirements=[])
    x = {"x": some_rows(3)}
    with pytest.raises(Refused, match="runs a pickle"):
        publishing.publish(registry, blobs, VersionFiles("it", source=folder, examples=[x]))
    given = VersionFiles("it", source=folder, examples=[x], allow_pickle=True)
    version = publishing.publish(registry, blobs, given)
    servable = load(version, fetch(version, blobs, tmp_path / "cache"))
    np.testing.assert_allclose(servable.predict(x)["output"], x["x"] * 2)
    servable.close()


def test_a_package_that_is_missing_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name.partition(".")[0])

    names = ("xgboost", "lightgbm", "sklearn")
    found = {name: files_kind(ModelKind(name)) for name in names}
    monkeypatch.setattr(importlib, "import_module", gone)
    folder = tmp_path / "it"
    folder.mkdir()
    (folder / "model.skops").touch()
    for name in names:
        with pytest.raises(MissingExtra) as refused:
            found[name].known(folder, {})
        assert refused.value.fix == f"pip install 'holdfast[{name}]'"


def test_every_kind_of_files_is_a_module_with_the_same_functions() -> None:
    for kind in set(ModelKind) - CODE_KINDS:
        found = files_kind(kind)
        assert found.FILE
        for name in ("gather", "load", "known", "lines"):
            assert callable(getattr(found, name))


def test_what_is_not_known_by_its_name_must_be_said(tmp_path: Path) -> None:
    (tmp_path / "odd.xyz").write_bytes(b"")
    with pytest.raises(Usage, match="not known what kind"):
        publishing.check(VersionFiles("it", source=tmp_path / "odd.xyz"))
    with pytest.raises(Usage, match="needs its file or folder"):
        publishing.check(VersionFiles("it", kind=ModelKind.XGBOOST))

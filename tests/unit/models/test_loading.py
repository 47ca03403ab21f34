"""From a record to answers: torch, damage, and two versions side by side."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from holdfast.models import examples, loading
from holdfast.models.importing import PREFIX
from holdfast.models.loading import check_example, discard, fetch, load, place
from holdfast.models.records import EXAMPLE, WEIGHTS, ModelKind, Signature, TensorSpec, Version
from holdfast.storage import Blobs, bundles, put_part
from holdfast.wire.errors import BadModel, Corrupt, Missing, Usage
from holdfast.wire.limits import QUIET_PIECE_BYTES
from tests.unit.models.stage import (
    code,
    draft_of,
    linear_weights,
    some,
    torch_draft,
    version_of,
    weights_file,
)


def private_modules() -> set[str]:
    return {name for name in sys.modules if name.startswith(PREFIX)}


# --- fetching -------------------------------------------------------------------------------------


def test_what_is_fetched_is_whole_and_fetched_once(blobs: Blobs, tmp_path: Path) -> None:
    version = version_of(blobs, torch_draft(blobs, tmp_path / "code"))
    folder = fetch(version, blobs, tmp_path / "cache")
    assert sorted(path.name for path in folder.iterdir()) == ["code", EXAMPLE, WEIGHTS]
    assert (folder / "code" / "net.py").is_file()
    before = (folder / WEIGHTS).stat().st_ino
    assert fetch(version, blobs, tmp_path / "cache") == folder == place(version, tmp_path / "cache")
    assert (folder / WEIGHTS).stat().st_ino == before


class Counting:
    """A hash that notes the sizes of what it is given."""

    def __init__(self, sizes: list[int]) -> None:
        self._sizes = sizes
        self._hash = hashlib.sha256()
        self.hexdigest = self._hash.hexdigest

    def update(self, piece: bytes) -> None:
        self._sizes.append(len(piece))
        self._hash.update(piece)


def test_files_are_moved_in_small_pieces(
    blobs: Blobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = os.urandom(3 * 1024 * 1024 + 5)
    version = Version(
        "m", 1, ModelKind.ONNX, Signature((), ()), {"f": put_part(blobs, data)}, "sha256:1", 0.0
    )
    streamed: list[int] = []
    verified: list[int] = []
    stream = blobs.stream

    def counting(*given: Any, **options: Any) -> Iterator[bytes]:
        for piece in stream(*given, **options):
            streamed.append(len(piece))
            yield piece

    monkeypatch.setattr(blobs, "stream", counting)
    monkeypatch.setattr(loading, "hashlib", SimpleNamespace(sha256=lambda: Counting(verified)))
    path = fetch(version, blobs, tmp_path / "cache") / "f"
    assert path.read_bytes() == data
    fetch(version, blobs, tmp_path / "cache")
    for sizes in (streamed, verified):
        assert sum(sizes) == len(data)
        assert max(sizes) == QUIET_PIECE_BYTES == 128 * 1024


def test_a_damaged_file_of_the_cache_is_fetched_anew(blobs: Blobs, tmp_path: Path) -> None:
    version = version_of(blobs, torch_draft(blobs, tmp_path / "code"))
    folder = fetch(version, blobs, tmp_path / "cache")
    whole = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(whole[:-1] + b"!")
    (folder / EXAMPLE).write_bytes(b"")
    (folder / "code" / "net.py").write_text("changed\n")
    fetch(version, blobs, tmp_path / "cache")
    assert (folder / WEIGHTS).read_bytes() == whole
    check_example(load(version, folder), version, folder)


def test_a_damaged_part_of_the_store_is_refused_and_named(blobs: Blobs, tmp_path: Path) -> None:
    version = version_of(blobs, torch_draft(blobs, tmp_path / "code"))
    stored = tmp_path / "store" / version.files[WEIGHTS].key
    data = bytearray(stored.read_bytes())
    data[-1] ^= 1
    stored.chmod(0o600)
    stored.write_bytes(bytes(data))
    with pytest.raises(Corrupt) as refused:
        fetch(version, blobs, tmp_path / "cache")
    assert f"{WEIGHTS} of digits@1 is damaged" in refused.value.what
    assert version.files[WEIGHTS].key in refused.value.why
    assert not list((tmp_path / "cache").rglob(WEIGHTS))
    stored.unlink()
    with pytest.raises(Missing, match=version.files[WEIGHTS].key):
        fetch(version, blobs, tmp_path / "cache")


def test_a_loaded_version_goes_on_after_its_files_were_discarded(
    blobs: Blobs, tmp_path: Path
) -> None:
    version = version_of(blobs, torch_draft(blobs, tmp_path / "code"))
    folder = fetch(version, blobs, tmp_path / "cache")
    servable = load(version, folder)
    held = examples.read(folder)
    assert held is not None
    discard(version, tmp_path / "cache")
    assert not folder.exists()
    examples.compare("it", version.signature, held.outputs, servable.predict(held.inputs))
    discard(version, tmp_path / "cache")
    servable.close()


def test_a_version_whose_record_names_a_file_outside_is_refused(
    blobs: Blobs, tmp_path: Path
) -> None:
    version = version_of(blobs, torch_draft(blobs, tmp_path / "code"))
    bad = replace(version, files={"../outside": version.files[WEIGHTS]})
    with pytest.raises(Corrupt, match="outside"):
        fetch(bad, blobs, tmp_path / "cache")


# --- torch ----------------------------------------------------------------------------------------


def test_two_versions_with_the_same_module_names_answer_side_by_side(
    blobs: Blobs, tmp_path: Path
) -> None:
    before = private_modules()
    loaded = []
    for number, scale in ((1, 2), (2, 3)):
        draft = torch_draft(blobs, tmp_path / f"code{number}", scale=scale)
        version = version_of(blobs, draft, number)
        folder = fetch(version, blobs, tmp_path / "cache")
        servable = load(version, folder)
        check_example(servable, version, folder)
        loaded.append(servable)
    x = some(2)
    one, two = (servable.predict({"x": x})["output"] for servable in loaded)
    np.testing.assert_allclose(one / 2, two / 3, rtol=1e-5)
    loaded[0].close()
    np.testing.assert_array_equal(loaded[1].predict({"x": x})["output"], two)
    loaded[1].close()
    assert not private_modules() - before


def test_weights_are_mapped_and_not_copied(blobs: Blobs, tmp_path: Path) -> None:
    folder = code(
        tmp_path / "wide",
        {"net.py": "from torch import nn\ndef make():\n    return nn.Linear(4096, 4096)\n"},
    )
    made = torch.nn.Linear(4096, 4096)
    files = {WEIGHTS: weights_file(made.state_dict())}
    draft = draft_of(
        blobs, folder, ModelKind.TORCH, "net:make", {"input": some(1, 4096)}, files=files
    )
    version = version_of(blobs, draft)
    servable = load(version, fetch(version, blobs, tmp_path / "cache"))
    assert WEIGHTS in Path("/proc/self/maps").read_text()
    servable.close()


def test_a_plain_module_is_built_once_and_without_memory(blobs: Blobs, tmp_path: Path) -> None:
    folder = code(
        tmp_path / "counted",
        {
            "net.py": """
                import os
                from torch import nn
                class Net(nn.Module):
                    def __init__(self):
                        super().__init__()
                        self.layer = nn.Linear(4, 2)
                        self.norm = nn.BatchNorm1d(2)
                        os.environ["BUILT"] += str(self.layer.weight.device.type)
                    def forward(self, x):
                        return self.norm(self.layer(x))
            """
        },
    )
    norm = torch.nn.BatchNorm1d(2).state_dict()
    tensors = {**linear_weights(), **{f"norm.{name}": value for name, value in norm.items()}}
    files = {WEIGHTS: weights_file(tensors)}
    os.environ["BUILT"] = ""
    draft_of(blobs, folder, ModelKind.TORCH, "net:Net", {"x": some()}, files=files)
    assert os.environ.pop("BUILT") == "meta"


def test_a_module_with_tensors_besides_its_weights_is_built_with_them(
    blobs: Blobs, tmp_path: Path
) -> None:
    folder = code(
        tmp_path / "ghosts",
        {
            "net.py": """
                import torch
                from torch import nn
                class Net(nn.Module):
                    def __init__(self):
                        super().__init__()
                        self.layer = nn.Linear(4, 2)
                        self.register_buffer("twice", torch.tensor(2.0), persistent=False)
                        self.once = torch.tensor([1.0])
                        self.table = {"three": [torch.tensor(3.0)]}
                        hidden = torch.tensor(5.0)
                        self.more = lambda x: x * hidden
                    def forward(self, x):
                        found = self.layer(x) * self.twice * self.once * self.table["three"][0]
                        return self.more(found)
            """
        },
    )
    files = {WEIGHTS: weights_file(linear_weights())}
    x = some()
    draft = draft_of(blobs, folder, ModelKind.TORCH, "net:Net", {"x": x}, files=files)
    version = version_of(blobs, draft)
    servable = load(version, fetch(version, blobs, tmp_path / "cache"))
    tensors = linear_weights()
    expected = (torch.from_numpy(x) @ tensors["layer.weight"].T + tensors["layer.bias"]) * 30
    np.testing.assert_allclose(servable.predict({"x": x})["output"], expected, rtol=1e-5)


def test_inputs_go_by_name_where_forward_knows_them_else_in_order(
    blobs: Blobs, tmp_path: Path
) -> None:
    folder = code(
        tmp_path / "pairs",
        {
            "net.py": """
                from torch import nn
                class Pair(nn.Module):
                    def forward(self, left, right):
                        return left - right, {"unused": 1} and right.bfloat16()
            """
        },
    )
    files = {WEIGHTS: weights_file({})}
    one, two = np.full((2, 1), 5, np.float32), np.full((2, 1), 3, np.float32)
    by_name = draft_of(
        blobs, folder, ModelKind.TORCH, "net:Pair", {"right": two, "left": one}, files=files
    )
    version = version_of(blobs, by_name)
    servable = load(version, fetch(version, blobs, tmp_path / "cache"))
    found = servable.predict({"right": two, "left": one})
    assert found["output_0"].tolist() == [[2], [2]]
    assert found["output_1"].dtype == np.float32
    specs = tuple(TensorSpec(name, "FP32", (-1, 1)) for name in ("a", "b"))
    in_order = replace(version, signature=Signature(specs, version.signature.outputs))
    servable = load(in_order, fetch(version, blobs, tmp_path / "cache"))
    assert servable.predict({"b": two, "a": one})["output_0"].tolist() == [[2], [2]]


def test_what_came_from_the_wire_is_not_written_into(blobs: Blobs, tmp_path: Path) -> None:
    folder = code(
        tmp_path / "rude",
        {
            "net.py": """
                from torch import nn
                class Net(nn.Module):
                    def forward(self, x):
                        return x.add_(1)
            """
        },
    )
    files = {WEIGHTS: weights_file({})}
    draft = draft_of(blobs, folder, ModelKind.TORCH, "net:Net", {"x": some()}, files=files)
    version = version_of(blobs, draft)
    servable = load(version, fetch(version, blobs, tmp_path / "cache"))
    wire = np.frombuffer(some().tobytes(), np.float32).reshape(3, 4)
    np.testing.assert_array_equal(servable.predict({"x": wire})["output"], some() + 1)
    np.testing.assert_array_equal(wire, some())


# --- what is wrong is said ------------------------------------------------------------------------


def test_code_that_fails_to_load_is_named_with_its_own_last_lines(
    blobs: Blobs, tmp_path: Path
) -> None:
    before = private_modules()
    draft = torch_draft(blobs, tmp_path / "code")
    broken = code(tmp_path / "broken", {"net.py": "import missing_thing\n"})
    version = version_of(blobs, replace(draft, bundle=bundles.push(blobs, broken).digest))
    with pytest.raises(BadModel) as failed:
        load(version, fetch(version, blobs, tmp_path / "cache"))
    assert "missing_thing" in failed.value.why
    assert any("net.py" in line for line in failed.value.story)
    assert not any("holdfast_model" in line for line in (failed.value.why, *failed.value.story))
    assert not private_modules() - before


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("net:Missing", "has no Missing"),
        ("net", "has the entry 'net'"),
        ("../net:Net", "has the entry"),
        ("helper:SCALE", "cannot be loaded"),
    ],
)
def test_an_entry_that_is_none_is_a_bad_model(
    blobs: Blobs, tmp_path: Path, entry: str, words: str
) -> None:
    draft = replace(torch_draft(blobs, tmp_path / "code"), entry=entry)
    version = version_of(blobs, draft)
    with pytest.raises(BadModel) as failed:
        load(version, fetch(version, blobs, tmp_path / "cache"))
    assert words in failed.value.what


def test_weights_that_do_not_belong_to_the_code_are_refused(blobs: Blobs, tmp_path: Path) -> None:
    draft = torch_draft(blobs, tmp_path / "code")
    other = {WEIGHTS: weights_file(linear_weights(prefix="other."))}
    version = version_of(blobs, replace(draft, files={**draft.files, **other}))
    with pytest.raises(BadModel, match="cannot be loaded") as failed:
        load(version, fetch(version, blobs, tmp_path / "cache"))
    assert "layer.weight" in failed.value.why


def test_a_version_that_does_not_reproduce_its_example_says_by_how_much(
    blobs: Blobs, tmp_path: Path
) -> None:
    draft = torch_draft(blobs, tmp_path / "code")
    other = {WEIGHTS: weights_file(linear_weights(seed=5))}
    version = version_of(blobs, replace(draft, files={**draft.files, **other}))
    folder = fetch(version, blobs, tmp_path / "cache")
    with pytest.raises(BadModel) as failed:
        check_example(load(version, folder), version, folder)
    assert "does not give what its example says" in failed.value.what
    assert "is off by" in failed.value.why


def test_a_version_that_fails_on_its_example_shows_the_models_own_words(
    blobs: Blobs, tmp_path: Path
) -> None:
    folder = code(
        tmp_path / "f",
        {"f.py": "def f(inputs):\n    assert inputs['x'].sum() < 0, 'too much'\n    return 1\n"},
    )
    draft = draft_of(blobs, folder, ModelKind.FUNCTION, "f:f", {"x": np.array([-1.0])})
    example = examples.Example({"x": np.array([1.0])}, {"output": np.array(1)})
    files = {EXAMPLE: examples.to_bytes(example)}
    version = version_of(blobs, replace(draft, files=files))
    where = fetch(version, blobs, tmp_path / "cache")
    with pytest.raises(BadModel) as failed:
        check_example(load(version, where), version, where)
    assert "too much" in failed.value.why
    assert any("f.py" in line for line in failed.value.story)


SCRIPT = """
    from holdfast import train
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x):
            return self.layer(x) * 2

    def main(run):
        raise AssertionError("it trains")

    class Late(Net):
        def forward(self, x):
            train.launch(main)

    %s
    raise AssertionError("it went on")
"""


def test_a_script_that_trains_when_it_is_imported_is_loaded_up_to_there(
    blobs: Blobs, tmp_path: Path
) -> None:
    folder = code(tmp_path / "eager", {"train.py": SCRIPT % "train.launch(main)"})
    draft = replace(
        torch_draft(blobs, tmp_path / "code"),
        bundle=bundles.push(blobs, folder).digest,
        entry="train:Net",
    )
    version = version_of(blobs, draft)
    before = dict(os.environ)
    folder = fetch(version, blobs, tmp_path / "cache")
    servable = load(version, folder)
    check_example(servable, version, folder)
    servable.close()
    assert dict(os.environ) == before


def test_a_model_that_would_train_when_it_is_asked_is_told_so(blobs: Blobs, tmp_path: Path) -> None:
    folder = code(tmp_path / "late", {"train.py": SCRIPT % "train.launch(main)"})
    draft = replace(
        torch_draft(blobs, tmp_path / "code"),
        bundle=bundles.push(blobs, folder).digest,
        entry="train:Late",
    )
    version = version_of(blobs, draft)
    servable = load(version, fetch(version, blobs, tmp_path / "cache"))
    with pytest.raises(Usage, match="would train"):
        servable.predict({"x": some()})
    servable.close()

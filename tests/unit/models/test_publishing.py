"""`run.publish`: a module becomes a version that a replica can build again, or the run is told why
not. The run is alone in this process; the plane and the store are real."""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from holdfast import train
from holdfast.models.loading import check_example, fetch, load
from holdfast.models.records import Version
from holdfast.models.registry import Registry
from holdfast.storage import Blobs, bundles
from holdfast.wire import worker_messages
from holdfast.wire.errors import Usage
from tests.unit.models.stage import code

NET = """
    import torch
    from torch import nn
    from parts import block

    class Net(nn.Module):
        def __init__(self, width=4):
            super().__init__()
            self.body, self.drop = block(width), nn.Dropout(0.5)
        def forward(self, left, right):
            return self.drop(self.body(left - right))

    class Outer:
        class Inner(nn.Linear):
            pass

    def made(width, depth):
        return nn.Sequential(*(block(width) for _ in range(depth)))
"""
PARTS = "from torch import nn\ndef block(width):\n    return nn.Linear(width, width)\n"

Publish = Callable[..., train.Published]


class Project:
    """The user's folder: its modules, and what a run in it does."""

    def __init__(self, registry: Registry, blobs: Blobs, folder: Path) -> None:
        self.net = importlib.import_module("net")
        self.registry = registry
        self.blobs = blobs
        self.folder = folder

    def run(self, work: Callable[[train.Run], Any], **tracked: Any) -> Any:
        def main(run: train.Run) -> Any:
            run.track(**tracked)
            return work(run)

        return train.launch(main)

    def publishes(self, model: nn.Module, name: str = "it", **more: Any) -> train.Published:
        found: train.Published = self.run(lambda run: run.publish(model, name, **more), model=model)
        return found

    def version(self, found: train.Published) -> Version:
        """The version, after a replica's own look at it."""
        assert found.version is not None
        version = self.registry.version(found.model, found.version)
        folder = fetch(version, self.blobs, self.folder / "cache")
        servable = load(version, folder)
        check_example(servable, version, folder)
        servable.close()
        return version


@pytest.fixture
def project(
    registry: Registry,
    address: str,
    blobs: Blobs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Project]:
    place = code(tmp_path / "project", {"net.py": NET, "parts.py": PARTS})
    bundle = bundles.push(blobs, place)
    monkeypatch.setenv(worker_messages.COORDINATION_VARIABLE, address)
    monkeypatch.setenv(worker_messages.STORE_VARIABLE, str(tmp_path / "store"))
    monkeypatch.setenv(worker_messages.BUNDLE_VARIABLE, bundle.digest)
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(str(place))
    deterministic = torch.are_deterministic_algorithms_enabled()
    yield Project(registry, blobs, tmp_path)
    torch.use_deterministic_algorithms(deterministic)
    for name in ("net", "parts"):
        sys.modules.pop(name, None)


def test_a_module_becomes_a_version_with_the_names_of_its_forward(project: Project) -> None:
    model = project.net.Net(4)
    example = (torch.randn(3, 4), torch.randn(3, 4))
    found = project.publishes(
        model, example=example, metrics={"score": 0.5, "nothing": float("nan")}, alias="prod"
    )
    version = project.version(found)
    assert str(found).startswith("it@1 (")
    assert (version.entry, version.job, version.step) == ("net:Net", "solo", 0)
    assert [spec.name for spec in version.signature.inputs] == ["left", "right"]
    assert version.signature.outputs[0].shape == (-1, 4)
    assert version.signature.batches
    assert version.metrics == {"score": 0.5}
    held = project.registry.alias("it", "prod")
    assert held is not None
    assert (held.version, held.moves[0].by) == (1, "job solo")
    assert found.digest == train.digest_of(model) == version.files["weights.safetensors"].digest


def test_publishing_changes_neither_the_mode_nor_the_random_numbers(project: Project) -> None:
    model = project.net.Net(4)
    model.body.eval()

    def work(run: train.Run) -> tuple[Any, Any]:
        def state() -> tuple[Any, ...]:
            arrays = np.random.get_state(legacy=False)["state"]["key"]
            return torch.get_rng_state().tolist(), random.getstate(), np.asarray(arrays).tolist()

        before = state()
        run.publish(model, "it", example={"left": np.ones((2, 4)), "right": np.ones((2, 4))})
        return before, state()

    model.double()
    before, after = project.run(work, model=model)
    assert before == after
    assert [module.training for module in (model, model.body, model.drop)] == [True, False, True]


def test_what_is_published_twice_at_one_step_is_one_version(project: Project) -> None:
    model = project.net.Net(4)
    example = (torch.ones(1, 4), torch.ones(1, 4))

    def work(run: train.Run) -> list[int | None]:
        first = run.publish(model, "it", example=example)
        again = run.publish(model, "it", example=example)
        with torch.no_grad():
            model.body.bias.add_(1)
        return [first.version, again.version, run.publish(model, "it", example=example).version]

    assert project.run(work, model=model) == [1, 1, 2]


def test_a_model_that_a_function_made_is_built_by_that_function(project: Project) -> None:
    model = project.net.made(4, 2)
    with pytest.raises(Usage, match="cannot be built again") as refused:
        project.publishes(model, example=torch.ones(2, 4))
    assert "build=" in refused.value.fix
    given = {"width": 4, "depth": 2}
    for build in (project.net.made, "net:made"):
        found = project.publishes(model, example=torch.ones(2, 4), build=build, arguments=given)
        assert project.version(found).entry == "net:made"


def test_a_class_inside_a_class_or_of_an_installed_package_is_found_again(
    project: Project,
) -> None:
    sizes = {"in_features": 4, "out_features": 3}
    found = project.publishes(
        project.net.Outer.Inner(4, 3), example=torch.ones(2, 4), arguments=sizes
    )
    assert project.version(found).entry == "net:Outer.Inner"
    found = project.publishes(nn.Linear(4, 3), "plain", example=torch.ones(2, 4), arguments=sizes)
    assert project.version(found).entry == "torch.nn.modules.linear:Linear"


@pytest.mark.parametrize("how", ["its class", "a lambda"])
def test_what_lives_inside_a_function_is_refused_with_what_to_do(
    project: Project, how: str
) -> None:
    class Local(nn.Linear):
        pass

    more: dict[str, Any] = {} if how == "its class" else {"build": lambda: nn.Linear(4, 4)}
    with pytest.raises(Usage, match="cannot be found again by its name") as refused:
        project.publishes(Local(4, 4), example=torch.ones(1, 4), **more)
    assert "build=" in refused.value.fix


def test_weights_of_another_model_than_the_code_builds_are_refused(project: Project) -> None:
    model = project.net.Net(4)
    with pytest.raises(Usage, match="cannot be built again") as refused:
        project.publishes(
            model, example=(torch.ones(1, 4), torch.ones(1, 4)), arguments={"width": 5}
        )
    assert "size mismatch" in refused.value.why


def test_a_job_without_code_cannot_publish_a_version(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(worker_messages.BUNDLE_VARIABLE, "")
    with pytest.raises(Usage, match="cannot become a version") as refused:
        project.publishes(nn.Linear(1, 1), example=torch.ones(1, 1))
    assert "no bundle" in refused.value.why


def test_names_are_checked_before_anything_is_done(project: Project) -> None:
    with pytest.raises(Usage, match="not the name of a model"):
        project.publishes(nn.Linear(1, 1), "a/b", example=torch.ones(1, 1))
    with pytest.raises(Usage, match="not the name of an alias"):
        project.publishes(nn.Linear(1, 1), example=torch.ones(1, 1), alias="3")
    assert project.registry.models() == {}


def test_without_an_example_only_the_weights_are_written(project: Project) -> None:
    model = nn.Linear(4, 4)
    found = project.publishes(model, "plain")
    assert (found.version, found.key) == (None, "published/solo/plain.safetensors")
    assert project.blobs.exists(found.key)
    assert project.registry.models() == {}

"""What a run leaves behind: a version of a model, or its weights as one safetensors file.

A version is its example, its parts and its record in the plane. Few workers publish, and these
imports take a while: the module is loaded when something is published.
"""

from __future__ import annotations

import hashlib
import math
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from holdfast.coordination import connect
from holdfast.models import describing, examples
from holdfast.models.drafts import VersionDraft
from holdfast.models.examples import Example
from holdfast.models.making import Recipe, checked, example_files
from holdfast.models.records import WEIGHTS, ModelKind, Signature, Version, check_alias, check_model
from holdfast.models.registry import Registry
from holdfast.models.torch_kind import TorchServable, forward_names, on_host
from holdfast.storage import open_store
from holdfast.storage.bundles import FILES
from holdfast.system import disk, logs
from holdfast.train.modes.training_loop import TrainingLoop
from holdfast.train.states.memory import entry, weight_buffers, weights
from holdfast.train.states.state import TrainingState
from holdfast.wire import worker_messages
from holdfast.wire.errors import BadModel, RetryError, Usage

log = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class Published:
    """Where the weights are: in which store (or folder), under which name, with which digest; and
    as which version of the model, if it became one."""

    where: str
    key: str
    digest: str
    model: str = ""
    version: int | None = None

    def __str__(self) -> str:
        at = f"{self.where}/{self.key}"
        return at if self.version is None else f"{self.model}@{self.version} ({at})"


@dataclass(frozen=True, slots=True)
class PublishRequest:
    """What was said of a version besides its model and its name; see `Run.publish`."""

    example: Any = None
    metrics: Mapping[str, float] | None = None
    build: Callable[..., Any] | str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    alias: str | None = None
    dynamic: Mapping[str, Any] | None = None


def publish(loop: TrainingLoop, model: nn.Module, name: str, asked: PublishRequest) -> Published:
    """See `Run.publish`."""
    if asked.example is not None:
        check_model(name)
    if asked.alias is not None:
        check_alias(asked.alias)
    loop.collective.verify(f"when {name} was to be published,", lambda: _as_state(model))
    found = loop.collective.together(lambda _lane: _write(loop, model, name, asked), lanes=(0,))[0]
    return Published(**found)


def _as_state(model: nn.Module) -> TrainingState:
    tensors = model.state_dict().items()
    return TrainingState.of(
        0, [entry(name, it) for name, it in tensors if isinstance(it, torch.Tensor)]
    )


def _write(
    loop: TrainingLoop, model: nn.Module, name: str, asked: PublishRequest
) -> dict[str, Any]:
    plane = os.environ.get(worker_messages.COORDINATION_VARIABLE)
    if loop.held.store and plane and asked.example is not None:
        found = _write_version(loop, loop.held.store, plane, model, name, asked)
    else:
        found = _write_file(loop, model, name)
        if asked.example is None and loop.held.store:
            log.info("only the weights were written: a version that can be served needs example=")
    log.info("published", **asdict(found))
    return asdict(found)


def _write_file(loop: TrainingLoop, model: nn.Module, name: str) -> Published:
    data = weights(model)
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    if loop.held.store:
        blobs = open_store(loop.held.store)
        key = f"published/{loop.held.job}/{name}.safetensors"
        blobs.put(key, data, expect_digest=digest)
        return Published(blobs.address, key, digest)
    key = f"{name}.safetensors"
    disk.replace_durably(Path(key), data)
    return Published(str(Path.cwd()), key, digest)


# --- a version ------------------------------------------------------------------------------------


# A worker that publishes waits for a plane that is away: longer than a failover or a restart, and
# shorter than the silence after which its agent takes it for hung.
PUBLISH_S: Final = 600.0
PUBLISH_RETRY_S: Final = 1.0


def _write_version(
    loop: TrainingLoop, store: str, plane: str, model: nn.Module, name: str, asked: PublishRequest
) -> Published:
    """Check that the module can be built again, write its parts, then its record."""
    bundle = os.environ.get(worker_messages.BUNDLE_VARIABLE, "")
    if not bundle:
        raise Usage(
            f"{name} cannot become a version",
            why="the job has no bundle: a replica would have no code to build the model from",
            fix="submit the job with its code (bundle: .), or publish without example=",
        )
    with tempfile.TemporaryDirectory(prefix="publish-") as folder, chance_kept():
        files = Path(folder)
        with (files / WEIGHTS).open("wb", buffering=0) as out:
            for piece in weight_buffers(model):
                out.write(piece)
        draft = _draft(loop, model, name, asked, bundle, files)
        version = _committed(plane, store, draft, asked.alias)
    part = version.files[WEIGHTS]
    return Published(open_store(store).address, part.key, part.digest, name, version.number)


def _draft(
    loop: TrainingLoop, model: nn.Module, name: str, asked: PublishRequest, bundle: str, files: Path
) -> VersionDraft:
    code = code_folder(bundle)
    built = asked.build if asked.build is not None else type(model)
    named = built if isinstance(built, str) else entry_of(built, code)
    recipe = Recipe(name, ModelKind.TORCH, files, code, named, asked.arguments)
    signature, known = describe_module(model, asked.example, asked.dynamic)
    try:
        checked(recipe, signature, known, device_of(model).type)
    except BadModel as error:
        raise Usage(
            f"{name} cannot be built again from its code: {error.what}",
            why=error.why,
            fix="give build= a class or function of your own modules that makes it, and "
            "arguments= what it is called with",
            story=error.story,
        ) from error
    return VersionDraft(
        model=name,
        kind=ModelKind.TORCH,
        signature=signature,
        files={WEIGHTS: files / WEIGHTS, **example_files(known)},
        bundle=bundle,
        entry=named,
        arguments=asked.arguments,
        job=loop.held.job,
        step=loop.held.member.step,
        metrics=_metrics(loop, asked.metrics),
    )


def _metrics(loop: TrainingLoop, given: Mapping[str, float] | None) -> dict[str, float]:
    """What the last step said, and what the caller adds. What is no number says nothing."""
    every = {**loop.held.position.metrics, **(given or {})}
    plain = {str(name): float(value) for name, value in every.items()}
    return {name: value for name, value in plain.items() if math.isfinite(value)}


def _committed(plane: str, store: str, draft: VersionDraft, alias: str | None) -> Version:
    """Publish it, however often the plane goes away meanwhile: the same again is the same."""
    deadline_s = time.monotonic() + PUBLISH_S
    while True:
        try:
            with connect(plane) as session:
                registry = Registry(session, open_store(store), f"job {draft.job}")
                version = registry.publish(draft)
                if alias is not None:
                    why = f"published at step {draft.step}"
                    registry.set_alias(draft.model, alias, version.number, why=why)
                return version
        except RetryError as error:
            if time.monotonic() > deadline_s:
                raise
            log.warning("publishing waits", model=draft.model, reason=error.sentence)
            time.sleep(PUBLISH_RETRY_S)


# --- signature ------------------------------------------------------------------------------------
# What a version says of a live module: its example, its signature, and how to build it again.


def describe_module(
    model: nn.Module, given: Any, dynamic: Any = None
) -> tuple[Signature, tuple[Example, ...]]:
    """The examples with what the module itself makes of them, in eval mode; and its signature."""
    names = forward_names(model)
    every = given if isinstance(given, list) else [given]
    inputs = [examples.named(on_host(each), names, "inputs") for each in every]
    if not inputs:
        raise Usage("example=[] has no example", fix="give one batch of inputs, or several")
    takes = describing.signature_of([Example(inputs[0], {})]).inputs
    with _resting(model):
        servable = TorchServable(Signature(takes, ()), model, device_of(model))
        return describing.describe(inputs, servable.predict, describing.dynamic_of(dynamic))


def entry_of(thing: Any, code: Path) -> str:
    """`[FOLDER/]MODULE:NAME` of a class or a function, as a replica finds it in the bundle."""
    name = getattr(thing, "__qualname__", "")
    module = getattr(thing, "__module__", "")
    if not name or not module or "<" in name:
        raise Usage(
            f"{name or repr(thing)} cannot be found again by its name",
            why="a replica imports it from your modules; this one lives inside a function",
            fix="move it to the top of a module, or give build= a function that is there",
        )
    folder, main = _script(code)
    module = main if module == "__main__" else module
    return f"{folder}/{module}:{name}" if folder else f"{module}:{name}"


def code_folder(bundle: str) -> Path:
    """Where the bundle that this process runs was unpacked: it began there, and may have left."""
    name = bundle.partition(":")[2]
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    for place in Path(script).absolute().parents if script else ():
        if place.name == FILES and place.parent.name == name:
            return place
    return Path.cwd()


def device_of(model: nn.Module) -> torch.device:
    """Where its first weight is."""
    first = next(iter(model.state_dict().values()), None)
    return first.device if isinstance(first, torch.Tensor) else torch.device("cpu")


@contextmanager
def chance_kept() -> Iterator[None]:
    """Random numbers go on afterwards as if nothing had been drawn."""
    plain, arrays = random.getstate(), np.random.get_state()
    in_use = torch.cuda.is_initialized()
    devices = [torch.cuda.current_device()] if in_use else []
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            random.setstate(plain)
            np.random.set_state(arrays)


@contextmanager
def _resting(model: nn.Module) -> Iterator[None]:
    """Each of its modules goes back to the mode that it had before it became servable."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _script(code: Path) -> tuple[str, str]:
    """The script that runs, within the bundle: the folder that it imports from, and its module."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return "", str(spec.name)  # python -m MODULE
    path = Path(getattr(main, "__file__", "") or "").absolute()
    if not path.is_relative_to(code):
        return "", "__main__"
    inside = path.relative_to(code)
    folder = "" if str(inside.parent) == "." else inside.parent.as_posix()
    return folder, inside.stem

"""Publishing a module as a version: its example, its parts, its record in the plane."""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from torch import nn

from holdfast.coordination import connect
from holdfast.models.drafts import Draft
from holdfast.models.making import Recipe, checked, example_files
from holdfast.models.records import WEIGHTS, Kind, Version
from holdfast.models.registry import Registry
from holdfast.storage import open_store
from holdfast.train import portrait
from holdfast.train.modes.rounds import Rounds
from holdfast.train.publishing import Published, Wish, buffers
from holdfast.wire import logs, talk
from holdfast.wire.errors import BadModel, RetryError, Usage

# A worker that publishes waits for a plane that is away: longer than a failover or a restart, and
# shorter than the silence after which its agent takes it for hung.
PUBLISH_S: Final = 600.0
PUBLISH_RETRY_S: Final = 1.0

log = logs.get(__name__)


def write_version(
    rounds: Rounds, store: str, plane: str, model: nn.Module, name: str, wish: Wish
) -> Published:
    """Check that the module can be built again, write its parts, then its record."""
    bundle = os.environ.get(talk.BUNDLE_VARIABLE, "")
    if not bundle:
        raise Usage(
            f"{name} cannot become a version",
            why="the job has no bundle: a replica would have no code to build the model from",
            fix="submit the job with its code (bundle: .), or publish without example=",
        )
    with tempfile.TemporaryDirectory(prefix="publish-") as folder, portrait.chance_kept():
        files = Path(folder)
        with (files / WEIGHTS).open("wb", buffering=0) as out:
            for piece in buffers(model):
                out.write(piece)
        draft = _draft(rounds, model, name, wish, bundle, files)
        version = _committed(plane, store, draft, wish.alias)
    part = version.files[WEIGHTS]
    return Published(open_store(store).address, part.key, part.digest, name, version.number)


def _draft(
    rounds: Rounds, model: nn.Module, name: str, wish: Wish, bundle: str, files: Path
) -> Draft:
    code = portrait.code_folder(bundle)
    built = wish.build if wish.build is not None else type(model)
    named = built if isinstance(built, str) else portrait.entry_of(built, code)
    recipe = Recipe(name, Kind.TORCH, files, code, named, wish.arguments)
    signature, known = portrait.taken(model, wish.example, wish.dynamic)
    try:
        checked(recipe, signature, known, portrait.device_of(model).type)
    except BadModel as error:
        raise Usage(
            f"{name} cannot be built again from its code: {error.what}",
            why=error.why,
            fix="give build= a class or function of your own modules that makes it, and "
            "arguments= what it is called with",
            story=error.story,
        ) from error
    return Draft(
        model=name,
        kind=Kind.TORCH,
        signature=signature,
        files={WEIGHTS: files / WEIGHTS, **example_files(known)},
        bundle=bundle,
        entry=named,
        arguments=wish.arguments,
        job=rounds.job,
        step=rounds.member.step,
        metrics=_metrics(rounds, wish.metrics),
    )


def _metrics(rounds: Rounds, given: Mapping[str, float] | None) -> dict[str, float]:
    """What the last step said, and what the caller adds. What is no number says nothing."""
    every = {**rounds.position.metrics, **(given or {})}
    plain = {str(name): float(value) for name, value in every.items()}
    return {name: value for name, value in plain.items() if math.isfinite(value)}


def _committed(plane: str, store: str, draft: Draft, alias: str | None) -> Version:
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

"""`train.launch(main)`: from a script to a run, with a cluster or without.

Started by an agent the script is one worker of a job. Started by hand (`python train.py`) it is the
whole job: all lanes, one after the other, in this process. The result is the same.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import torch

from holdfast.models.importing import PREFIX as MODEL_CODE
from holdfast.models.importing import WouldTrain
from holdfast.storage import open_store
from holdfast.train.chance import seed_everything, seed_of
from holdfast.train.coordinating import Alone, InCluster
from holdfast.train.data import single
from holdfast.train.data.digests import Damaged
from holdfast.train.link import Link
from holdfast.train.members.member import Left, Member
from holdfast.train.members.solo import Solo
from holdfast.train.modes.asynchronous.rounds import AsyncRounds
from holdfast.train.modes.local import LocalRounds
from holdfast.train.modes.rounds import Rounds
from holdfast.train.progress import progress_from_environment
from holdfast.train.run import Run
from holdfast.train.settings import Settings
from holdfast.wire import logs, talk
from holdfast.wire.errors import Usage

T = TypeVar("T")
log = logs.get(__name__)
THREADS_VARIABLE: Final = "HOLDFAST_THREADS"
DEVICE_VARIABLE: Final = "HOLDFAST_DEVICE"
CHECKPOINTS_VARIABLE: Final = "HOLDFAST_CHECKPOINTS"
# cuBLAS keeps to one order of summation only with a workspace of a fixed size.
_CUBLAS: Final = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def launch(
    main: Callable[[Run], T],
    *,
    lanes: int | None = None,
    settings: Mapping[str, Any] | None = None,
    seed: int = 0,
    mode: str = "sync",
) -> T:
    """Run `main(run)`, and stay until the job's last step is committed. Returns what it returned.

    `lanes`: into how many lanes a step is divided; the job (HOLDFAST_LANES) has the last word, and
    without either it is 1. `settings`: defaults of the settings, which also give them their types.
    A setting named `seed` takes the place of `seed`. Without a cluster settings come from
    HOLDFAST_SETTINGS (a JSON object), and a folder named by HOLDFAST_CHECKPOINTS keeps checkpoints:
    started again, the script goes on from the last one. How far it is is shown on stderr, unless
    HOLDFAST_PROGRESS is 0. `mode`: "sync", "local" or "async";
    the job's own (HOLDFAST_MODE) counts if it is not the default.

    A replica imports the script for its classes: there the import ends at this call, so that
    nothing behind it runs.
    """
    if (getattr(main, "__module__", None) or "").startswith(MODEL_CODE):
        raise WouldTrain(
            "a model's code would train when it is only to be loaded",
            why="it calls train.launch, and not only while it is imported",
            fix='call it under: if __name__ == "__main__":',
        )
    link = Link.from_environment()
    values = Settings(settings)
    texts = first_settings()
    values.take(texts)
    make_deterministic()
    store = os.environ.get(talk.STORE_VARIABLE) or None
    rounds = _kind(mode, alone=link is None)(
        lanes=_lanes(lanes),
        seed=int(values.get("seed", seed)),
        settings=values,
        texts=texts,
        device=_device(),
        worker=link.worker if link else 0,
        job=link.job if link else "solo",
        store=store,
    )
    if link is None:
        folder = os.environ.get(CHECKPOINTS_VARIABLE)
        rounds.member = Solo(
            rounds,
            rounds.lanes,
            settings=texts,
            folder=Path(folder) if folder else None,
            progress=progress_from_environment(),
        )
    elif isinstance(rounds, AsyncRounds):
        rounds.attach(link, open_store(store) if store else None)
    else:
        member = Member(link, rounds, open_store(store) if store else None)
        member.on_meeting = rounds.met
        rounds.member = member
    seed_everything(seed_of(rounds.seed, "fresh"))
    return _carried_out(main, rounds, link)


def _carried_out(main: Callable[[Run], T], rounds: Rounds, link: Link | None) -> T:
    """The script's own code, and the stay until its last step is committed."""
    shared = Alone() if link is None else InCluster(link, rounds.member.leave)
    try:
        result = main(Run(rounds, shared))
        rounds.finish()
    except Left:
        raise
    except BaseException as error:
        told = single.explained(rounds.resuming.explained(error), rounds.given) or error
        _end(rounds, link, told)
        if told is not error:
            raise told from error
        raise
    finally:
        shared.close()
    return result


def _end(rounds: Rounds, link: Link | None, error: BaseException) -> None:
    """Let go of everything after this error; say so if it would come again, whoever tries."""
    if link is not None and isinstance(error, (Usage, Damaged)):
        link.refused()
    rounds.member.close()


def _kind(mode: str, *, alone: bool) -> type[Rounds]:
    """The machinery of the job's mode, or of the script's where the job says nothing. Alone there
    is nobody to be asynchronous with."""
    kinds: dict[str, type[Rounds]] = {"sync": Rounds, "local": LocalRounds, "async": AsyncRounds}
    asked = os.environ.get(talk.MODE_VARIABLE) or "sync"
    chosen = mode if asked == "sync" else asked
    if chosen not in kinds:
        raise Usage(
            f"there is no mode {chosen!r} here",
            why=f"this version trains in {' or '.join(kinds)}",
            fix="write `mode: sync` in the job file",
        )
    return Rounds if alone and chosen == "async" else kinds[chosen]


def first_settings() -> dict[str, str]:
    """The settings that the job began with: what models and optimizers are made from. One that was
    changed later comes with the state, and at its step."""
    text = os.environ.get(talk.SETTINGS_VARIABLE) or "{}"
    try:
        found = json.loads(text)
        return {str(name): str(value) for name, value in found.items()}
    except (ValueError, AttributeError) as error:
        raise Usage(
            f"{talk.SETTINGS_VARIABLE}={text[:100]!r}",
            why="it is not a JSON object of names and values",
            fix=f"""write it as {talk.SETTINGS_VARIABLE}='{{"lr": "0.01"}}'""",
        ) from error


def make_deterministic() -> None:
    """The same numbers from the same numbers: the same kernels, and a fixed number of threads."""
    os.environ.setdefault(*_CUBLAS)
    torch.use_deterministic_algorithms(True)
    # Filling every new tensor first costs a pass over memory, and only hides reads of what was
    # never written.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
    torch.set_num_threads(_number(THREADS_VARIABLE, 1))


def _device() -> torch.device:
    name = os.environ.get(DEVICE_VARIABLE)
    return torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))


def _lanes(said: int | None) -> int:
    """The job's, else the script's own. Where both say a number and it is not the same, that is
    told: the bits are not those of the script alone."""
    count = _number(talk.LANES_VARIABLE, said or 1)
    if said is not None and said != count:
        log.warning(
            f"the job has lanes={count} and train.launch says lanes={said}: other lanes give other "
            f"bits than the script alone (--lanes {said}, or `lanes: {said}` in the job file)"
        )
    return count


def _number(variable: str, default: int) -> int:
    text = os.environ.get(variable) or str(default)
    if not text.isdecimal() or int(text) < 1:
        raise Usage(f"{variable}={text!r}", why="it must be a number from 1 on", fix="correct it")
    return int(text)

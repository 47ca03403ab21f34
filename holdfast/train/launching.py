"""`train.launch(main)`: from a script to a run, with a cluster or without.

Started by an agent the script is one worker of a job. Started by hand (`python train.py`) it is the
whole job: all lanes, one after the other, in this process. The result is the same.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import torch

from holdfast.models.importing import PREFIX as MODEL_CODE
from holdfast.models.importing import WouldTrain
from holdfast.storage import open_store
from holdfast.system import logs
from holdfast.train import gpu_faults
from holdfast.train.chance import seed_everything, seed_of
from holdfast.train.data.digests import Damaged
from holdfast.train.members.member import ViewMember, WorkerLeft
from holdfast.train.members.solo import Solo
from holdfast.train.metric_topic import MetricTopic
from holdfast.train.modes.asynchronous.loop import AsyncLoop
from holdfast.train.modes.asynchronous.member import AsyncMember
from holdfast.train.modes.local import LocalLoop, LocalState
from holdfast.train.modes.run_state import RunState
from holdfast.train.modes.training_loop import TrainingLoop
from holdfast.train.progress import progress_from_environment
from holdfast.train.refusals import explain_single_sample
from holdfast.train.run import Run
from holdfast.train.settings import Settings
from holdfast.wire import worker_messages
from holdfast.wire.errors import Usage
from holdfast.worker.agent_client import AgentClient
from holdfast.worker.sharing import SharingAlone, SharingInCluster

if TYPE_CHECKING:
    from holdfast.topics import Connection

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
    agent = AgentClient.from_environment()
    values = Settings(settings)
    texts = first_settings()
    values.take(texts)
    make_deterministic()
    kind = _kind(mode, alone=agent is None)
    held = (LocalState if kind is LocalLoop else RunState)(
        lanes=_lanes(lanes),
        seed=int(values.get("seed", seed)),
        settings=values,
        texts=texts,
        device=_device(),
        worker=agent.worker if agent else 0,
        job=agent.job if agent else "solo",
        store=os.environ.get(worker_messages.STORE_VARIABLE) or None,
    )
    if agent is not None and os.environ.get(worker_messages.TOPICS_VARIABLE):
        held.metric_topic = MetricTopic(agent.job, agent.worker, _topics)
    return _carried_out(main, _loop(kind, held, agent), agent)


def _topics() -> Connection:
    from holdfast.topics import connect  # noqa: PLC0415 - the Kafka client is loaded when needed

    return connect()


def _loop(kind: type[TrainingLoop], held: RunState, agent: AgentClient | None) -> TrainingLoop:
    """The loop, with its member: one of the job's, or the only one."""
    if agent is None:
        folder = os.environ.get(CHECKPOINTS_VARIABLE)
        held.member = Solo(
            held,
            held.lanes,
            settings=held.applied,
            folder=Path(folder) if folder else None,
            progress=progress_from_environment(),
        )
        return kind(held)
    blobs = open_store(held.store) if held.store else None
    if kind is AsyncLoop:
        # Nobody sets what it tells.
        held.member = AsyncMember(  # type: ignore[assignment]
            agent, blobs, lanes=held.lanes, tracked=held.tracked, settings=held.settings
        )
        return kind(held)
    held.member = member = ViewMember(agent, held, blobs)
    loop = kind(held)
    member.on_meeting = loop.views.met
    return loop


def _carried_out(main: Callable[[Run], T], loop: TrainingLoop, agent: AgentClient | None) -> T:
    """The script's own code, and the stay until its last step is committed."""
    held = loop.held
    seed_everything(seed_of(held.seed, "fresh"))
    shared = SharingAlone() if agent is None else SharingInCluster(agent, held.member.leave)
    try:
        result = main(Run(loop, shared))
        loop.finish()
    except WorkerLeft:
        raise
    except BaseException as error:
        explained = held.resuming.explained(error)
        explained = explain_single_sample(explained, loop.lane.count) or explained
        if held.device.type == "cuda":
            gpu = f"GPU {held.device.index or 0}"
            explained = gpu_faults.explained_here(explained, gpu) or explained
        _end(held, agent, explained)
        if explained is not error:
            raise explained from error
        raise
    finally:
        if held.metric_topic is not None:
            held.metric_topic.close()
        shared.close()
    return result


def _end(held: RunState, agent: AgentClient | None, error: BaseException) -> None:
    """Let go of everything after this error; say so if it would come again, whoever tries."""
    if agent is not None and isinstance(error, (Usage, Damaged)):
        agent.refused()
    held.member.close()


def _kind(mode: str, *, alone: bool) -> type[TrainingLoop]:
    """The machinery of the job's mode, or of the script's where the job says nothing. Alone there
    is nobody to be asynchronous with."""
    kinds: dict[str, type[TrainingLoop]] = {
        "sync": TrainingLoop,
        "local": LocalLoop,
        "async": AsyncLoop,
    }
    asked = os.environ.get(worker_messages.MODE_VARIABLE) or "sync"
    chosen = mode if asked == "sync" else asked
    if chosen not in kinds:
        raise Usage(
            f"there is no mode {chosen!r} here",
            why=f"this version trains in {' or '.join(kinds)}",
            fix="write `mode: sync` in the job file",
        )
    return TrainingLoop if alone and chosen == "async" else kinds[chosen]


def first_settings() -> dict[str, str]:
    """The settings that the job began with: what models and optimizers are made from. One that was
    changed later comes with the state, and at its step."""
    text = os.environ.get(worker_messages.SETTINGS_VARIABLE) or "{}"
    try:
        found = json.loads(text)
        return {str(name): str(value) for name, value in found.items()}
    except (ValueError, AttributeError) as error:
        raise Usage(
            f"{worker_messages.SETTINGS_VARIABLE}={text[:100]!r}",
            why="it is not a JSON object of names and values",
            fix=f"""write it as {worker_messages.SETTINGS_VARIABLE}='{{"lr": "0.01"}}'""",
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


def _lanes(asked: int | None) -> int:
    """The job's, else the script's own. Where both say a number and it is not the same, that is
    told: the bits are not those of the script alone."""
    count = _number(worker_messages.LANES_VARIABLE, asked or 1)
    if asked is not None and asked != count:
        log.warning(
            f"the job has lanes={count} and train.launch says lanes={asked}: other lanes give "
            f"other bits than the script alone (--lanes {asked}, or `lanes: {asked}` in the job "
            "file)"
        )
    return count


def _number(variable: str, default: int) -> int:
    text = os.environ.get(variable) or str(default)
    if not text.isdecimal() or int(text) < 1:
        raise Usage(f"{variable}={text!r}", why="it must be a number from 1 on", fix="correct it")
    return int(text)

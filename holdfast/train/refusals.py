"""What cannot give the same bits on any number of workers, refused by name before the first step.

One table of classes, by the names that torch gives them (nothing is imported for it), and a few
rules for what a name does not say. Each says what to write instead.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from holdfast.train.states.tracked import Tracked
from holdfast.wire.errors import Usage


class Refusal(NamedTuple):
    why: str
    fix: str


_WRAPPER: Final = Refusal(
    "Holdfast divides the lanes over workers and sums their gradients itself",
    "track the plain model: run.track(model=Net().to(run.device), ...)",
)
_OBSERVER: Final = Refusal(
    "its kernels write what they observe without counting it as a change, so each worker would "
    "come to ranges of its own",
    "quantize after training, or with fake quantization that is computed from the weights alone",
)
_CLASSES: Final[dict[str, Refusal]] = {
    "DistributedDataParallel": _WRAPPER,
    "DataParallel": _WRAPPER,
    "FullyShardedDataParallel": _WRAPPER,
    "FSDPModule": _WRAPPER,
    "SyncBatchNorm": Refusal(
        "it averages over the processes of torch.distributed, and there are none",
        "use BatchNorm, which is of a lane's batch, or GroupNorm",
    ),
    **dict.fromkeys(("FakeQuantizeBase", "ObserverBase"), _OBSERVER),
    "SparseAdam": Refusal(
        "gradients are summed over lanes as dense tensors, and it takes only sparse ones",
        "use Adam, and nn.Embedding without sparse=True",
    ),
    "LBFGS": Refusal(
        "it computes the loss again and again in one step, through a closure; a step here has one "
        "forward pass a lane",
        "use another optimizer, SGD or AdamW",
    ),
    "ZeroRedundancyOptimizer": Refusal(
        "it divides its state over the processes of torch.distributed, and there are none",
        "use the optimizer that it wraps",
    ),
}
_DISTRIBUTED: Final = Refusal(
    "it needs the processes of torch.distributed, and there are none here",
    "use what it stands for in one process",
)


def check(tracked: Tracked, *, replaces_update: bool = False) -> None:
    """Raise `Usage` for the first tracked object that cannot work. `replaces_update`: the script
    makes the updates itself, so nobody calls `step()`."""
    for name, thing in tracked.objects.items():
        _check_class(name, thing)
        if isinstance(thing, nn.Module):
            for path, module in thing.named_modules():
                _check_module(f"{name}.{path}" if path else name, module)
            for path, tensor in (*thing.named_parameters(), *thing.named_buffers()):
                _check_tensor(f"{name}/{path}", tensor)
        elif isinstance(thing, Optimizer):
            _check_optimizer(name, thing, replaces_update=replaces_update)
    _check_inner_optimizers(tracked)
    if replaces_update:
        _check_scaler(tracked)


def check_trains(tracked: Tracked, *, own_update: bool) -> None:
    """Raise `Usage` if a loop would end with the weights that it began with."""
    if tracked.models and not tracked.optimizers and not own_update:
        raise Usage(
            "no optimizer is tracked, so the loop would change no weight",
            why="run.step steps tracked optimizers only",
            fix="track it: run.track(model=model, optimizer=optimizer)",
        )


def refuse_in_mode(mode: str, what: str) -> None:
    """Of things that only a step of all lanes together has."""
    if mode != "sync":
        why = {
            "local": "a lane trains by itself for some steps, and no update has all of them",
            "async": "servers make the updates, one for each batch as it comes",
        }[mode]
        raise Usage(f"{what} in the mode {mode!r}", why=why, fix="write `mode: sync`")


def _check_class(title: str, thing: object) -> None:
    for cls in type(thing).__mro__:
        if not cls.__module__.startswith("torch."):
            continue
        found = _CLASSES.get(cls.__name__)
        if found is None and cls.__module__.startswith("torch.distributed."):
            found = _DISTRIBUTED
        if found is not None:
            raise Usage(f"{title} is a {cls.__name__}", why=found.why, fix=found.fix)


def _check_module(path: str, module: nn.Module) -> None:
    _check_class(path, module)
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        if module.sparse:
            raise Usage(
                f"{path} is an {type(module).__name__} with sparse=True",
                why="gradients are summed over lanes as dense tensors",
                fix="leave out sparse=True",
            )
        if module.max_norm is not None:
            raise Usage(
                f"{path} is an {type(module).__name__} with max_norm",
                why="its forward pass changes the weights, once a lane",
                fix="leave out max_norm, and scale the rows in a hook: run.every(1, hook)",
            )


def _check_tensor(path: str, tensor: torch.Tensor) -> None:
    if nn.parameter.is_lazy(tensor):
        raise Usage(
            f"{path} has no shape yet",
            why="a lazy module gets its weights with its first batch, after they are needed",
            fix="call the model once with an example before run.track, or give it its sizes",
        )
    if tensor.is_meta:
        raise Usage(
            f"{path} is on the device 'meta'",
            why="it has a shape, but no values",
            fix="make it on run.device, or call model.to_empty(device=run.device) and fill it",
        )
    _check_class(path, tensor)


def _check_optimizer(name: str, optimizer: Optimizer, *, replaces_update: bool) -> None:
    if any(group.get("differentiable") for group in optimizer.param_groups):
        raise Usage(
            f"{name} is a {type(optimizer).__name__} with differentiable=True",
            why="an update is made outside of any graph, from the gradient of all lanes",
            fix="leave it out; for a gradient through updates use torch.func in the loop's body",
        )
    if replaces_update:
        return
    # `step` may be wrapped by a scheduler; the class knows what it takes.
    asked = list(inspect.signature(type(optimizer).step).parameters.values())[1:]
    if any(each.default is each.empty and each.kind not in _REST for each in asked):
        raise Usage(
            f"{name} is a {type(optimizer).__name__}, whose step() needs an argument",
            why="a closure would compute the loss again, and a step has one forward pass a lane",
            fix="make the update yourself: run.batches(..., updates=2) and run.update_with(fn)",
        )


_REST: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _check_inner_optimizers(tracked: Tracked) -> None:
    """An optimizer around another one (SAM, Lookahead), whose state would be in no checkpoint."""
    known = {id(each) for each in tracked.optimizers.values()}
    for name, optimizer in tracked.optimizers.items():
        if type(optimizer).state_dict is not Optimizer.state_dict:
            continue  # it says by itself what there is to keep
        for attribute, inner in _optimizers_in(optimizer):
            if id(inner) not in known and inner.state is not optimizer.state:
                raise Usage(
                    f"{name} keeps a {type(inner).__name__} in its attribute {attribute}, which is"
                    " not tracked",
                    why="what that keeps (moments) would be in no checkpoint, and nobody who joins "
                    "would get it",
                    fix=f"track it too: run.track({name}_inner={name}.{attribute}), and make the "
                    "update with run.update_with(fn), so that it is not stepped by itself",
                )


def _optimizers_in(optimizer: Optimizer) -> Iterator[tuple[str, Optimizer]]:
    held: dict[str, Any] = vars(optimizer)
    yield from ((key, each) for key, each in held.items() if isinstance(each, Optimizer))


def _check_scaler(tracked: Tracked) -> None:
    for name, thing in tracked.objects.items():
        if isinstance(thing, torch.amp.GradScaler) and thing.is_enabled():
            raise Usage(
                f"run.update_with beside a GradScaler ({name})",
                why="a scaler leaves out updates whose gradients overflow, and a second update "
                "would follow a first that was left out",
                fix="use torch.autocast with bf16, which needs no scaler",
            )


def without_batch() -> Usage:
    return Usage(
        "run.step was called without a batch, or twice for one",
        fix="call it once in the body of `for batch in run.batches(...)`",
    )


def without_gradient() -> Usage:
    return Usage(
        "the loss that run.step was given depends on no parameter that is trained",
        why="it was computed without gradients, or from other things than the models",
        fix="give a loss of the batch; one that does not count is 0 * model(batch.x).sum()",
    )


# What torch says in `torch.nn.functional._verify_batch_size`.
_TORCH_SAYS: Final = "Expected more than 1 value per channel when training"


def explain_single_sample(error: BaseException, count: int) -> Usage | None:
    """What to do about a batch norm that got one sample; None: it is another error."""
    if count != 1 or not isinstance(error, ValueError) or _TORCH_SAYS not in str(error):
        return None
    return Usage(
        "a batch of one sample came to a batch norm",
        why="it computes a variance over the batch, and one sample has none; this was all that "
        "was left for the lane in this step",
        fix="leave that step out: run.batches(..., drop_last=True); or give a lane_batch from 2 on",
    )

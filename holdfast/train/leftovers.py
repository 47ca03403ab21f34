"""What a loop's body must not do, noticed while it runs: before `run.step` and behind it.

The body sees one lane's batch, and a worker has any number of lanes, or none with samples. So what
the body changes beside computing a loss would be changed a different number of times on each
worker. Lines that are left over from a loop without Holdfast do just that:

- calls of tracked objects (`optimizer.step`, `zero_grad`, `scheduler.step`, a scaler's methods),
  `loss.backward()` and `clip_grad_norm_` are refused where they are called, with their line;
- weights, `requires_grad` and an optimizer's groups are compared, with the last batch of a step,
  with what the step before left; gradients between the parts of a lane. A change of a weight
  through `.data` leaves no trace here: the members' digests show it. Of buffers, which a lane may
  change, one that does not count its changes is found in the first batches (see `Uncounted`).

All of it is refused, since none of it can be right. A number in a module that the body changes is
only worth a warning: whether the forward pass depends on it nobody knows (see `Attributes`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from operator import attrgetter, is_
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from holdfast.system import logs
from holdfast.train.calling import calling_line
from holdfast.train.sameness import same
from holdfast.train.states.tracked import Tracked
from holdfast.wire.errors import Usage

# A thing that every batch does is noticed in the first few; later one in so many is looked at.
_FIRST_BATCHES: Final = 32
_LATER_BATCHES: Final = 64

_version = attrgetter("_version")
_grad = attrgetter("grad")
_requires = attrgetter("requires_grad")


class Body:
    """The body of the loop under way, and the tracked objects that it must leave alone."""

    def __init__(self, tracked: Tracked) -> None:
        self._tracked = tracked
        self.runs = False
        self._known = False  # whether what follows is of the step under way
        self._new = False  # whether it was taken when the step before was complete, just now
        self._names: dict[int, str] = {}  # of parameters, by their identity
        self._parameters: list[nn.Parameter] = []
        self._tables: list[dict[str, nn.Parameter | None]] = []  # in which modules keep them
        self._held: list[int] = []  # the parameters of those, by their identity
        self._attributes = Attributes()
        self._buffers = Uncounted()
        self._batches = 0
        self._versions: list[int] = []
        self._addresses: list[int] = []
        self._required: list[bool] = []
        self._gradients: list[torch.Tensor | None] | None = None  # of parts before; None: no look
        self._gradient_versions: list[int] = []
        self._groups: list[Any] = []

    def open(self) -> None:
        """A loop begins: what there is to watch."""
        self.runs = self._known = False
        self._batches = 0
        found: dict[int, tuple[str, nn.Parameter]] = {}
        for title, model in self._tracked.models.items():
            for name, parameter in model.named_parameters():
                found.setdefault(id(parameter), (f"{title}/{name}", parameter))
        self._names = {each: name for each, (name, _) in found.items()}
        self._parameters = [parameter for _, parameter in found.values()]
        models = self._tracked.models.values()
        self._tables = [module._parameters for model in models for module in model.modules()]
        self._held = self._held_now()
        self._attributes = Attributes(self._tracked.models)
        self._buffers = Uncounted(self._tracked.models)
        for name, thing in self._tracked.objects.items():
            if isinstance(thing, (Optimizer, LRScheduler, torch.amp.GradScaler)):
                _watch(thing, name, self)
        _watch_clipping()
        _bodies.add(self)

    def close(self) -> None:
        """The loop is over."""
        self.runs = False
        _bodies.discard(self)

    # --- around a batch ------------------------------------------------------------------------

    def forget(self) -> None:
        """Something else than the body may have changed things: an update, a hook, a setting."""
        self._known = False

    def give(self, part: int) -> None:
        """The body gets a batch: this part of a lane's."""
        self._batches += 1
        if self.looks_closely:
            self._attributes.before()
            self._buffers.before()
            self._addresses = self._where_weights_lie()
        self._know()
        self._gradients = None
        if part or self.looks_closely:
            self._gradients = list(map(_grad, self._parameters))
            self._gradient_versions = list(map(_version, filter(_is_tensor, self._gradients)))
        self.runs = True

    def take(self, *, last: bool) -> None:
        """The body has called `run.step`, with the last batch of a step perhaps: it must have left
        everything as it was."""
        self.runs = False
        if self._gradients is not None:
            self._compare_gradients(self._gradients)
        if last or self.looks_closely:
            self._compare()
        if self.looks_closely:
            if self._held_now() != self._held:
                self._refuse_other_weights()
            self._attributes.after()
            self._buffers.after()
            if (now := self._where_weights_lie()) != self._addresses:
                self._refuse_change(self._addresses, now)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What is done within is not the body's doing."""
        before, self.runs = self.runs, False
        try:
            yield
        finally:
            self.runs = before

    def resume(self) -> None:
        """`run.step` returns to the body."""
        self._new = not self._known
        self._know()
        self.runs = True

    def end(self) -> None:
        """The body has run to its end. What it did behind the `run.step` that completed a step no
        later look would find: that begins with what there is then."""
        if self.runs and self._new:
            self._compare()
        self.runs = self._new = False

    def after_backward(self) -> None:
        """The backward pass of a batch is over: hooks of parameters must not have changed them."""
        if self.looks_closely and list(map(_version, self._parameters)) != self._versions:
            name = self._first(self._versions, list(map(_version, self._parameters)))
            raise Usage(
                f"the weight {name} was changed while run.step computed gradients",
                why="a hook of the parameter, or a module's own backward, changes it once a lane",
                fix="remove the hook that steps an optimizer in the backward pass: run.step does it"
                " when the gradient of all lanes is there",
            )

    @property
    def looks_closely(self) -> bool:
        """Whether this is one of the batches for which costlier looks are taken."""
        return self._batches <= _FIRST_BATCHES or self._batches % _LATER_BATCHES == 0

    def stray_gradient(self) -> None:
        """A tracked parameter has got a gradient."""
        if self.runs:
            raise Usage(
                f"backward() was called in the loop's body{_at(calling_line())}",
                why="run.step(loss) does it; the gradient would count twice, or be lost",
                fix="remove that line; for gradients of other things, as of a batch, write "
                "torch.autograd.grad(loss, x)",
            )

    # --- what is wrong -------------------------------------------------------------------------

    def _know(self) -> None:
        if not self._known:
            self._known = True
            self._versions = list(map(_version, self._parameters))
            self._required = list(map(_requires, self._parameters))
            self._groups = self._values_of_groups()

    def _compare(self) -> None:
        parameters = self._parameters
        if list(map(_version, parameters)) != self._versions:
            self._refuse_change(self._versions, list(map(_version, parameters)))
        if list(map(_requires, parameters)) != self._required:
            self._refuse_freezing()
        self._compare_groups()

    def _refuse_change(self, before: list[int], now: list[int]) -> None:
        name = self._first(before, now)
        raise Usage(
            f"the loop's body changed the weight {name}{_at(calling_line(), 'before ')}",
            why="the body runs once a lane, so each worker would change it another number of times",
            fix="change weights in a hook, run.every(1, hook), or in run.before_update(hook); "
            "nn.functional.embedding(max_norm=...) changes them, too",
        )

    def _held_now(self) -> list[int]:
        return [id(each) for table in self._tables for each in table.values()]

    def _refuse_other_weights(self) -> None:
        models = self._tracked.models.items()
        now = [(f"{title}/{name}", it) for title, m in models for name, it in m.named_parameters()]
        other = [name for name, each in now if id(each) not in self._names]
        raise Usage(
            f"the loop's body put another tensor into the place of the weight "
            f"{other[0] if other else 'of a model'}{_at(calling_line(), 'before ')}",
            why="the optimizer holds the one that was there, so the new one is not trained",
            fix="compute what the forward pass needs from the weight, or change it in a hook: with "
            "torch.no_grad(): weight.copy_(...)",
        )

    def _refuse_freezing(self) -> None:
        name = self._first(self._required, list(map(_requires, self._parameters)))
        raise Usage(
            f"the loop's body changed requires_grad of {name}{_at(calling_line(), 'before ')}",
            why="what is trained belongs to a step, and the body runs once a lane",
            fix="change it in a hook, or name the optimizer whose turn it is: "
            "run.step(loss, only=optimizer)",
        )

    def _compare_gradients(self, gradients: list[torch.Tensor | None]) -> None:
        now = list(map(_grad, self._parameters))
        for parameter, before, after in zip(self._parameters, gradients, now, strict=True):
            if before is not after:
                what = "removed" if after is None else "set"
                self._refuse_gradient(f"the gradient of {self._names[id(parameter)]} was {what}")
        if list(map(_version, filter(_is_tensor, now))) != self._gradient_versions:
            self._refuse_gradient("gradients of a part before were changed")

    def _refuse_gradient(self, what: str) -> None:
        raise Usage(
            f"{what} in the loop's body{_at(calling_line(), 'before ')}",
            why="run.step computes gradients, and with accumulate keeps those of the parts before",
            fix="remove backward() and zero_grad() from the body; change gradients in "
            "run.before_update(hook)",
        )

    def _compare_groups(self) -> None:
        now = self._values_of_groups()
        if len(now) == len(self._groups) and all(map(is_, now, self._groups)):
            return
        if len(now) != len(self._groups) or any(
            not _same(one, other) for one, other in zip(self._groups, now, strict=True)
        ):
            raise Usage(
                "the loop's body changed what an optimizer keeps for its groups (lr, "
                f"weight_decay, ...){_at(calling_line(), 'before ')}",
                why="a worker whose lanes have no samples in a step does not run the body",
                fix="set it in run.before_update(hook), from run.completed; or track a scheduler",
            )

    def _values_of_groups(self) -> list[Any]:
        return [
            value
            for optimizer in self._tracked.optimizers.values()
            for group in optimizer.param_groups
            for key, value in group.items()
            if key != "params"
        ]

    def _where_weights_lie(self) -> list[int]:
        plain = (torch.Tensor, nn.Parameter)
        return [each.data_ptr() if type(each) in plain else 0 for each in self._parameters]

    def _first(self, before: list[Any], now: list[Any]) -> str:
        """The name of the first parameter in which the two differ."""
        rows = zip(self._parameters, before, now, strict=True)
        return next(self._names[id(each)] for each, one, other in rows if one != other)


def _is_tensor(thing: object) -> bool:
    return thing is not None


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return one is other
    return bool(one == other)


def _at(line: str, word: str = "") -> str:
    return f" ({word}{line})" if line else ""


# --- calls ----------------------------------------------------------------------------------------

# Which loop's body a tracked object belongs to, and what it is tracked as. What is wrapped asks
# here; for anything else it costs a look into this table.
_owners: WeakKeyDictionary[object, tuple[str, Body]] = WeakKeyDictionary()
_bodies: WeakSet[Body] = WeakSet()

_INSTEAD: Final[Mapping[str, str]] = {
    "zero_grad": "run.step begins with no gradients",
    "scheduler": 'run.step steps what is tracked: every="step", "epoch" or "never" says when',
    "scaler": "run.step scales, unscales and updates",
    "step": "run.step updates when the gradient of all lanes is there",
}


def _watch(thing: object, name: str, body: Body) -> None:
    """Refuse calls of this object's methods by the body. Its class is wrapped, not the object: a
    method among an object's own attributes would become part of its state_dict or pickle."""
    known = thing in _owners
    _owners[thing] = name, body
    if isinstance(thing, Optimizer):
        if not known:
            thing.register_step_pre_hook(_before_step)
        _wrap(type(thing), "zero_grad", "zero_grad")
    elif isinstance(thing, LRScheduler):
        _wrap(type(thing), "step", "scheduler")
    else:
        for method in ("scale", "unscale_", "step", "update"):
            _wrap(type(thing), method, "scaler")


def _before_step(optimizer: Optimizer, *_: Any) -> None:
    _refuse_call(optimizer, "step", "step")


def _refuse_call(thing: object, method: str, kind: str) -> None:
    found = _owners.get(thing)
    if found is None or not found[1].runs:
        return
    name = found[0]
    raise Usage(
        f"{name}.{method}() was called in the loop's body{_at(calling_line())}",
        why=f"the body runs once a lane, not once a step; {_INSTEAD[kind]}",
        fix="remove that line",
    )


def _wrap(cls: type, method: str, kind: str) -> None:
    """Let the class that defines the method ask first, for all its objects, once and for all."""
    owner = next(each for each in cls.__mro__ if method in vars(each))
    plain: Callable[..., Any] = vars(owner)[method]
    if hasattr(plain, "_asks_holdfast"):
        return

    @functools.wraps(plain)
    def asking(self: Any, *args: Any, **options: Any) -> Any:
        _refuse_call(self, method, kind)
        return plain(self, *args, **options)

    asking._asks_holdfast = True  # type: ignore[attr-defined]
    setattr(owner, method, asking)


def _watch_clipping() -> None:
    """`clip_grad_norm_` and `clip_grad_value_` find no gradients in the body, and say nothing. A
    script may have imported them by name already, so what they call is wrapped: torch's own
    decorator keeps it in a cell."""
    for function in (nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_):
        code: Any = getattr(function, "__code__", None)
        cells: Any = getattr(function, "__closure__", None)
        if code is None or cells is None or "func" not in code.co_freevars:
            continue  # another torch: the gradients that it does not find are the same none
        cell = cells[code.co_freevars.index("func")]
        if not hasattr(cell.cell_contents, "_asks_holdfast"):
            cell.cell_contents = _asking_clip(cell.cell_contents)


def _asking_clip(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def asking(parameters: Any, *args: Any, **options: Any) -> Any:
        if not any(body.runs for body in _bodies):
            return plain(parameters, *args, **options)
        given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        _refuse_clipping(given, plain.__name__)
        return plain(given, *args, **options)

    asking._asks_holdfast = True  # type: ignore[attr-defined]
    return asking


def _refuse_clipping(parameters: Iterable[torch.Tensor], name: str) -> None:
    for body in _bodies:
        if body.runs and any(id(each) in body._names for each in parameters):
            raise Usage(
                f"{name}() was called in the loop's body{_at(calling_line())}",
                why="there are no gradients yet, so it clips nothing",
                fix="remove that line, and say run.clip(norm) before the loop; by value: in "
                "run.before_update(hook)",
            )


# --- buffers that change without torch counting it ------------------------------------------------


# Whoever writes a buffer in each forward pass can afford it: what is larger is a table, a mask.
_BUFFER_BYTES_MAX: Final = 16 * 1024 * 1024


class Uncounted:
    """The buffers of the models, compared around some of the first batches."""

    def __init__(self, models: Mapping[str, nn.Module] | None = None) -> None:
        self._buffers = [
            (f"{title}/{path}.{name}".replace("/.", "/"), buffer)
            for title, model in (models or {}).items()
            for path, module in model.named_modules()
            if not isinstance(module, _NormBase)
            for name, buffer in module.named_buffers(recurse=False)
            if buffer.nbytes <= _BUFFER_BYTES_MAX
        ]
        self._before: list[tuple[int, torch.Tensor]] = []

    def before(self) -> None:
        """The body is about to run."""
        self._before = [(each._version, each.detach().clone()) for _, each in self._buffers]

    def after(self) -> None:
        """The body has run: what has another value must say so."""
        for (name, buffer), (version, before) in zip(self._buffers, self._before, strict=True):
            if buffer._version == version and not same(buffer.detach(), before):
                line = calling_line()
                raise Usage(
                    f"the buffer {name} was changed without torch counting it"
                    + (f", before {line}" if line else ""),
                    why="a write through .data, or by a kernel, is not seen; each worker would come"
                    " to another value",
                    fix="write to the buffer itself: with torch.no_grad(): self.buffer.copy_(...)",
                )
        self._before = []


# --- numbers that a model keeps as plain attributes -----------------------------------------------


log = logs.get(__name__)

_PLAIN: Final = (int, float, bool)
# Switched by `train()` and `eval()`, in a body that looks at a teacher for instance.
_HARMLESS: Final = frozenset({"training"})
# Beyond so many modules of the script's own a look would take more than a millisecond.
_MODULES_MAX: Final = 2_000

Place = tuple[nn.Module, str, str]  # a module, its path, the attribute


class Attributes:
    """The plain numbers of all modules that are not torch's own."""

    def __init__(self, models: Mapping[str, nn.Module] | None = None) -> None:
        self._modules = [
            (f"{title}.{path}".rstrip("."), module)
            for title, model in (models or {}).items()
            for path, module in model.named_modules()
            if not type(module).__module__.startswith("torch.")
        ][:_MODULES_MAX]
        self._before: dict[tuple[int, str], float] = {}
        self._warned: set[tuple[int, str]] = set()

    def before(self) -> None:
        """The body is about to run."""
        self._before = {(id(m), key): vars(m)[key] for m, _, key in self._places()}

    def after(self) -> None:
        """The body has run."""
        for module, path, key in self._places():
            place, now = (id(module), key), vars(module)[key]
            before = self._before.get(place, now)
            if before == now or before is now or place in self._warned:
                continue
            self._warned.add(place)
            log.warning(
                "the loop's body changes a number that is kept in a module",
                attribute=f"{type(module).__name__}.{key} of {path}: from {before} to {now}",
                why="it counts what this worker computed, and no checkpoint has it: the result may"
                " depend on the number of workers",
                fix="derive it from run.completed, or keep it in a buffer",
            )

    def _places(self) -> Iterator[Place]:
        for path, module in self._modules:
            for key, value in vars(module).items():
                if type(value) in _PLAIN and key not in _HARMLESS:
                    yield module, path, key

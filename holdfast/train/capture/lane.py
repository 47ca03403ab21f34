"""What a script calls for its loop's body: the function itself, or its graph.

The first lane of a form runs the function. The second one tries whether it can be captured: it is
run with whatever waits for the device refused, and leaves no trace; then it is captured, replayed,
and both must have come to the same bits. From then on lanes of that form are replayed. Whatever
does not fit goes on as a plain call, and says why, once.

Either way the script gets values without a graph of autograd's, and `run.step` knows what belongs
to them. So a script cannot hold on to what a captured lane would overwrite, and what it does with a
loss beside giving it to `run.step` is refused on every device alike.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn

from holdfast.system import logs
from holdfast.train.calling import is_of_the_script
from holdfast.train.capture.at_hand import AtHand
from holdfast.train.capture.deciding import (
    CaptureFacts,
    Uncapturable,
    after_trial,
    decide,
    impossible,
    loss_of,
    signature,
)
from holdfast.train.capture.graph import CapturePool, Computed, Graph, waiting_refused
from holdfast.train.chance import drawn, random_numbers_kept
from holdfast.train.data.batch import Batch, mapped
from holdfast.train.modes.training_loop import TrainingLoop
from holdfast.train.sums.stepping import Gradients
from holdfast.wire.errors import Usage

# A graph cannot see that a number which its function reads has changed. So once in so many lanes
# the function itself is run, too, and both must come to the same.
CAPTURE_CHECK_LANES: Final = 4096

log = logs.get(__name__)

_FORMS_KEPT: Final = 256  # of batches that were seen once; beyond that counting begins anew
_PLAIN: Final = (bool, int, float, str)
_HOOKS: Final = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True, slots=True)
class PendingLoss:
    """What a function came to for the batch that is with the user's code."""

    shown: torch.Tensor  # the loss as the script has it
    loss: torch.Tensor
    gradients: Gradients | None  # None: they are still to be computed


class LaneFunctions:
    """What all functions of a run share."""

    def __init__(self, loop: TrainingLoop) -> None:
        self.loop = loop
        self.pending: PendingLoss | None = None
        self.reads: set[str] | None = None  # what a function reads of the run, while it is tried
        self.graphs = 0
        self.off = ""  # why nothing is captured any more
        self._pool: CapturePool | None = None
        self._model: tuple[int, object, int, str] | None = None
        self._forms: dict[tuple[Any, ...], int] = {}  # of models, numbered

    def note(self, what: str) -> bool:
        """The script uses this of the run; whether that is a trial, which must leave no trace."""
        if self.reads is None:
            return False
        self.reads.add(what)
        return True

    def redeem(
        self, loss: torch.Tensor, more: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, Gradients | None]:
        """What `run.step` was given: the loss to go back from, or the gradients themselves."""
        pending, self.pending = self.pending, None
        if pending is None:
            return torch.stack([loss, *more]).sum() if more else loss, None
        if more or loss is not pending.shown:
            raise Usage(
                "run.step was given something else than the loss that the lane's function returned",
                why="the function of run.lane computes the gradients of what it returns",
                fix="compute the whole loss in that function, and give run.step what it returns",
            )
        return pending.loss, pending.gradients

    def pool(self) -> CapturePool:
        if self._pool is None:
            self._pool = CapturePool(self.loop.held.device)
        return self._pool

    def model(self, at: AtHand) -> tuple[int, str]:
        """A number for what a graph takes for granted of the models, and whatever has a hook of the
        script's own. Both may change from one step to the next, by a hook or a setting."""
        step = self.loop.held.member.step
        if self._model is None or self._model[0] != step or self._model[1] is not at.stepping:
            models = self.loop.held.tracked.models.values()
            modules = [module for model in models for module in model.modules()]
            form = (tuple(map(id, at.stepping.parameters)), *_form(modules))
            if len(self._forms) >= _FORMS_KEPT:
                self.off = "numbers in the model change in every step"
            number = self._forms.setdefault(form, len(self._forms))
            self._model = step, at.stepping, number, _hook_of(modules)
        return self._model[2], self._model[3]


class LaneFunction:
    """The function of a loop's body. See `Run.lane`."""

    def __init__(
        self, function: Callable[[Batch], Any], lanes: LaneFunctions, *, capture: bool
    ) -> None:
        functools.update_wrapper(self, function)
        self._function, self._lanes = function, lanes
        loop = lanes.loop
        self._off = impossible(loop.held.device.type, loop.mode) if capture else ""
        self._captures = capture and not self._off
        self._graphs: dict[Any, Graph] = {}
        self._seen: dict[Any, int] = {}
        self._said: set[str] = set()

    def __call__(self, batch: Batch) -> Any:
        lanes = self._lanes
        if not lanes.loop.lane.count:
            return self._function(batch)  # in a hook, in an evaluation: a function like any other
        if lanes.pending is not None:
            raise Usage(
                "the function of run.lane was called twice for one batch",
                why="what it returns first is what run.step goes back from",
                fix="compute everything in one function, and call it once",
            )
        if self._captures and lanes.off:
            self._give_up(lanes.off)
        elif self._off:
            self._say(self._off)
        computed = self._from_graph(batch) if self._captures else None
        if computed is not None:
            shown = loss_of(computed.result)
            assert shown is not None
            lanes.pending = PendingLoss(shown, shown, computed.gradients)
            return computed.result
        result = self._function(batch)
        loss, plain = loss_of(result), mapped(result, torch.Tensor.detach)
        shown = loss_of(plain)
        if loss is None or shown is None:
            raise Usage(
                f"the function of run.lane returned a {type(result).__name__}",
                why="run.step needs its loss",
                fix="return the loss, or a tuple whose first is the loss",
            )
        lanes.pending = PendingLoss(shown, loss, None)
        return plain

    # --- captured ------------------------------------------------------------------------------

    def _from_graph(self, batch: Batch) -> Computed | None:
        """What the graph for such a batch comes to; None: there is none, and will be none now."""
        at = self._lanes.loop.lane.at_hand()
        if at.rehearsed:
            return None  # the function itself: when it comes again, the graph must agree
        try:
            model, hook = self._lanes.model(at)
            form = signature(batch.data), at.weight, model
            around = torch.is_autocast_enabled("cuda"), torch.is_grad_enabled()
            graph = self._graphs.get(form)
            if graph is not None and around == (False, True):
                return self._replayed(graph, batch, at)
            loop, seen = self._lanes.loop, self._count_form(form)
            decision = decide(
                CaptureFacts(
                    device=loop.held.device.type,
                    mode=loop.mode,
                    autocast=around[0],
                    gradients=around[1],
                    hook=hook,
                    whole=at.is_whole,
                    seen=seen,
                    graphs=self._lanes.graphs,
                )
            )
            if decision.reason:
                self._say(decision.reason)
            return self._capture(form, batch, at) if decision.capture else None
        except Uncapturable as error:
            self._give_up(str(error))
            return None

    def _count_form(self, form: Any) -> int:
        """How many lanes of this form there were."""
        if len(self._seen) >= _FORMS_KEPT:
            self._seen.clear()
        seen = self._seen.get(form, 0)
        self._seen[form] = seen + 1
        return seen

    def _give_up(self, reason: str) -> None:
        self._captures, self._off = False, reason
        self._graphs.clear()
        self._say(reason)

    def _replayed(self, graph: Graph, batch: Batch, at: AtHand) -> Computed:
        if (graph.replays + 1) % CAPTURE_CHECK_LANES:
            return graph.replay(batch.data)
        trial, _ = self._tried(batch, at)
        computed = graph.replay(batch.data)
        if not computed.equals(trial):
            raise Usage(
                f"the function {self._name} comes to something else than when it was captured",
                why="it reads something on the host that has changed since: a number, a global, an "
                "attribute of something that is no tracked model",
                fix="keep it in a tensor on the GPU and change that in place; or write "
                "@run.lane(capture=False)",
            )
        return computed

    def _tried(self, batch: Batch, at: AtHand) -> tuple[Computed, list[torch.Tensor]]:
        """What the function itself comes to, and the buffers that it writes to. Random numbers,
        buffers and gradients are as before. `Uncapturable` if a graph would not do the same."""
        buffers, reads = at.stepping.buffers, set[str]()
        begin, versions = buffers.copies(), [each._version for each in buffers.tensors]
        watched = WatchedBatch(batch, reads)
        self._lanes.reads = reads
        with random_numbers_kept():
            before = drawn()
            try:
                with waiting_refused():
                    computed = self._computed(watched, at)
            except Uncapturable:
                buffers.restore(begin)
                raise
            except Exception as error:  # whatever it is: the plain call will raise it, too, or not
                buffers.restore(begin)
                raise Uncapturable(_explained(error)) from error
            finally:
                self._lanes.reads = None
            drew = drawn() != before
        pairs = zip(buffers.tensors, versions, strict=True)
        written = [each for each, version in pairs if each._version != version]
        loss, replaced = loss_of(computed.result), buffers.replaced()
        buffers.restore(begin)
        if reason := after_trial(read=reads, drew=drew, replaced=replaced, loss=loss):
            raise Uncapturable(reason)
        return computed, written

    def _capture(self, form: Any, batch: Batch, at: AtHand) -> Computed:
        pool, buffers = self._lanes.pool(), at.stepping.buffers
        begin = buffers.copies()
        trial, written = self._tried(batch, at)
        stand = pool.generator.get_state()
        place = {"count": batch.count, "lane": batch.lane, "epoch": batch.epoch}

        def compute(data: Any) -> Computed:
            return self._computed(Batch(data, **place), at)

        try:
            graph = Graph(pool, batch.data, compute, written)
        except Exception as error:
            pool.recover()
            pool.generator.set_state(stand)
            buffers.restore(begin)
            # Graphs of before would go on with a generator that nobody seeds any more.
            self._lanes.off = _explained(error)
            raise Uncapturable(self._lanes.off) from error
        buffers.restore(begin)
        pool.generator.set_state(stand)
        computed = graph.replay(batch.data)
        if not computed.equals(trial):
            buffers.restore(begin)
            pool.generator.set_state(stand)
            raise Uncapturable("its graph came to other numbers than the function itself")
        self._lanes.graphs += 1
        self._graphs[form] = graph
        return computed

    def _computed(self, batch: Batch, at: AtHand) -> Computed:
        result = self._function(batch)
        loss = loss_of(result)
        if loss is None or not loss.requires_grad:
            raise Uncapturable(after_trial(read=set(), drew=False, replaced=None, loss=None))
        with at.body.paused():
            found = torch.autograd.grad(
                at.scaled(loss), at.stepping.parameters, allow_unused=True, materialize_grads=False
            )
        return Computed(mapped(result, torch.Tensor.detach), list(found))

    @property
    def _name(self) -> str:
        return getattr(self._function, "__qualname__", type(self._function).__name__)

    def _say(self, reason: str) -> None:
        if reason not in self._said:
            self._said.add(reason)
            log.warning(f"the function {self._name} of run.lane is not captured: {reason}")


class WatchedBatch(Batch):
    """A batch that notes what is asked of it beside its data."""

    __slots__ = ("reads",)

    def __init__(self, batch: Batch, reads: set[str]) -> None:
        self.reads = reads
        place = {"lane": batch.lane, "epoch": batch.epoch, "update": batch.update}
        super().__init__(batch.data, count=batch.count, **place)

    def __getattribute__(self, name: str) -> Any:
        if name in ("lane", "epoch", "update"):
            object.__getattribute__(self, "reads").add(f"batch.{name}")
        return object.__getattribute__(self, name)


def _form(modules: Iterable[nn.Module]) -> Iterable[Any]:
    """Of each module: its mode, its plain numbers, and where its tensors lie."""
    for module in modules:
        for key, value in vars(module).items():
            if type(value) in _PLAIN:
                yield key, value
        for table in (module._parameters, module._buffers):
            for each in table.values():
                if each is not None:
                    yield each.data_ptr(), each.requires_grad


def _hook_of(modules: Iterable[nn.Module]) -> str:
    """A module or parameter with a hook of the script's own; torch's own only compute."""
    for module in modules:
        tables = [getattr(module, name, None) for name in _HOOKS]
        if any(_are_of_the_script(table) for table in tables):
            return type(module).__name__
        for name, each in module._parameters.items():
            hooks = (
                getattr(each, "_backward_hooks", None),
                getattr(each, "_post_accumulate_grad_hooks", None),
            )
            if any(_are_of_the_script(table) for table in hooks):
                return f"{type(module).__name__}.{name}"
    return ""


def _are_of_the_script(hooks: Any) -> bool:
    own = ("torch.", "holdfast.")
    return any(
        not (getattr(hook, "__module__", None) or type(hook).__module__).startswith(own)
        for hook in (hooks or {}).values()
    )


def _explained(error: Exception) -> str:
    """Why a function could not be captured, from what it raised."""
    text = str(error).strip().partition("\n")[0] or type(error).__name__
    frames = reversed(traceback.extract_tb(error.__traceback__))
    own = (f"{it.filename}:{it.lineno}" for it in frames if is_of_the_script(it.filename))
    line = next(own, "")
    where = f" ({line})" if line else ""
    if "synchronizing" in text:
        return f"it waits for the GPU{where}: a value is read on the host, as by .item() or `if`"
    return f"{text}{where}"

"""What a training script holds in its hand.

    def main(run: train.Run) -> None:
        model = Net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=run.settings.lr)
        run.track(model=model, optimizer=optimizer)
        for batch in run.batches(dataset, lane_batch=32, epochs=3):
            loss = F.cross_entropy(model(batch.x), batch.y)
            run.step(loss)
        run.publish(model)

The loop's body sees one lane's batch of the current step. `run.step` after the last lane that this
worker holds completes the step for everybody. When a worker dies in the middle, the body sees the
lanes that were lost again; when this worker was behind, it goes on at the new step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from torch import nn
from torch.optim import Optimizer

from holdfast.train.batches import Batches, sizes_of
from holdfast.train.capture.lane import LaneFunction, LaneFunctions
from holdfast.train.data.batch import Batch
from holdfast.train.data.fetching import Collate, Samples
from holdfast.train.data.sharded import Sharded
from holdfast.train.data.source import BatchSource
from holdfast.train.evaluation import Evaluation, evaluate
from holdfast.train.hooks import Hook
from holdfast.train.modes.asynchronous.loop import AsyncLoop
from holdfast.train.modes.training_loop import TrainingLoop
from holdfast.train.refusals import refuse_in_mode
from holdfast.train.settings import Settings
from holdfast.wire.errors import Usage
from holdfast.worker import sharing
from holdfast.worker.sharing import OnChange, SharedHold, Sharing, SharingAlone, WatchedValue

if TYPE_CHECKING:
    from holdfast.train.publishing import Published


class Run:
    """One worker's part of a training run. Made by `train.launch`."""

    def __init__(self, loop: TrainingLoop, shared: Sharing | None = None) -> None:
        self._loop, self._held = loop, loop.held
        self._shared = shared or SharingAlone()
        self._loops = 0
        self._lanes = LaneFunctions(loop)
        self.parts = 1  # of a lane's batch; see `accumulate`

    # --- what it is ----------------------------------------------------------------------------

    @property
    def settings(self) -> Settings:
        """The job's hyper-parameters, as they are for the step under way."""
        self._lanes.note("run.settings")
        return self._held.settings

    @property
    def lanes(self) -> int:
        """How many lanes the job has. Never changes."""
        return self._held.lanes

    @property
    def first(self) -> bool:
        """Whether this worker holds lane 0: for what one worker shall print. It may be another
        worker after a death; for what must happen exactly once there is `once`."""
        return 0 in self._held.member.lanes

    @property
    def seed(self) -> int:
        return self._held.seed

    @property
    def device(self) -> torch.device:
        """Where to put models; batches come there by themselves."""
        return self._held.device

    @property
    def completed(self) -> int:
        """Steps that are complete: updates that the model has had."""
        self._lanes.note("run.completed")
        return self._held.member.step

    @property
    def epoch(self) -> int:
        """Epochs of the present loop that are complete."""
        self._lanes.note("run.epoch")
        return self._held.position.epoch

    @property
    def update_index(self) -> int:
        """Which update on the batch it is, as `batch.update` says, from 0 on: in the loop's body,
        in `before_update` and `update_with`. In a hook after a step: which one comes next, so 0
        when the batch had all of them."""
        self._lanes.note("run.update_index")
        return self._held.position.update

    @property
    def metrics(self) -> Mapping[str, float]:
        """The last completed step's loss and whatever was logged, as means over its samples. The
        same on every worker."""
        self._lanes.note("run.metrics")
        return dict(self._held.position.metrics)

    # --- before the loop -----------------------------------------------------------------------

    def track(
        self, *, every: Literal["step", "epoch", "never"] = "step", **objects: object
    ) -> None:
        """Keep these: checkpoints hold them, and whoever joins receives them.

        Modules, optimizers, schedulers, a `GradScaler`, and whatever has `state_dict` and
        `load_state_dict`. Optimizers are stepped by `run.step`; schedulers after every step, or
        with `every="epoch"` after every epoch, or never (then call them in a hook).
        """
        self._held.track(objects, every)

    def clip(self, norm: float | None) -> None:
        """Scale the gradient of every step down to this norm. None: leave it."""
        self._loop.clip = norm

    def compress(self, how: str) -> None:
        """How gradients travel: "none", "bf16", "int8", "topk:0.01" (a share of them) or
        "powersgd:4" (a rank). Say it before the first loop. The job's setting `compress` has the
        last word. See docs/modes.md."""
        if "compress" not in self.settings:
            self._loop.views.compress = how

    def accumulate(self, parts: int) -> None:
        """A lane's batch comes in so many parts, one after the other, and `run.step` is called for
        each: the step has `lanes * parts * lane_batch` samples in the memory of one part."""
        if parts < 1:
            raise Usage(f"accumulate({parts})", fix="give a number from 1 on")
        self.parts = parts

    def before_update(self, hook: Hook) -> Hook:
        """Call `hook(run)` between the sum and the update of every step, on every worker, once.
        Also a decorator.

        Parameters that get updated have their `.grad`: the mean over all samples of the step,
        unscaled where a `GradScaler` is tracked; None where no lane had a gradient. It may change
        them: clip by value or group by group, add noise. Several are called in their order, then
        `clip`, then the update.
        """
        refuse_in_mode(self._loop.mode, "run.before_update")
        self._loop.update_hooks.add_before(hook, self)
        return hook

    def update_with(self, fn: Hook) -> Hook:
        """Call `fn(run)` in place of stepping the tracked optimizers, on every worker, when the
        mean gradient of the step is in `.grad`. Also a decorator.

        For updates that are more than `optimizer.step()`: with `batches(..., updates=2)` and
        `run.update_index`, SAM's first and second step.
        """
        refuse_in_mode(self._loop.mode, "run.update_with")
        self._loop.update_hooks.replace_update(fn, self)
        return fn

    def every_epoch(self, hook: Hook) -> Hook:
        """Call `hook(run)` when an epoch is complete, on every worker, once. Also a decorator.

        It may evaluate, log, change tracked objects and call `stop_early`. Let it change tracked
        objects only after its last `evaluate`.
        """
        self._loop.hooks.add(None, hook, self)
        return hook

    @overload
    def every(self, steps: int, hook: Hook) -> Hook: ...

    @overload
    def every(self, steps: int) -> Callable[[Hook], Hook]: ...

    def every(self, steps: int, hook: Hook | None = None) -> Any:
        """The same after every so many steps; `@run.every(10)` is a decorator."""
        if steps < 1:
            raise Usage(f"every({steps}, ...)", fix="give a number from 1 on")
        if hook is None:
            return partial(self.every, steps)
        self._loop.hooks.add(steps, hook, self)
        return hook

    # --- the loop ------------------------------------------------------------------------------

    def batches(
        self,
        data: Samples | Sharded | Any,
        *,
        lane_batch: int | None = None,
        epochs: int | None = 1,
        shuffle: bool = True,
        drop_last: bool = False,
        loader_workers: int = 0,
        collate: Collate | None = None,
        updates: int = 1,
        sampler: Any = None,
        batch_sampler: Any = None,
    ) -> Iterator[Batch]:
        """The batches of the lanes that this worker holds, step after step.

        A step has `lanes * lane_batch` samples, however many workers there are. The last step of an
        epoch has what is left, evenly over the lanes; `drop_last` leaves it out. Without `epochs`
        it goes on until `stop_early`. With `loader_workers` processes fetch ahead.

        With `updates` every batch is given so many times, for one update after the other: all
        lanes of a step with `batch.update == 0`, their update, the same batches with 1, and so on.
        Each is a step. Schedulers step after the last one.

        `sampler(epoch, seed)` gives the order of an epoch; `batch_sampler(epoch, seed)` lists, each
        of them one lane's batch, and then there is no `lane_batch`. What is read is part of the
        job's state: a job does not go on with other data. The job's settings `lane_batch` and
        `accumulate`, if it has them, have the last word, step by step.
        """
        if updates != 1:
            if updates < 1:
                raise Usage(f"updates={updates}", fix="give a number from 1 on")
            refuse_in_mode(self._loop.mode, f"run.batches(updates={updates})")
        number, self._loops = self._loops, self._loops + 1
        loop, held = self._loop, self._held
        source = BatchSource(
            data,
            lanes=self.lanes,
            sizes=sizes_of(loop, data, lane_batch, self.parts, batch_sampler),
            shuffle=shuffle,
            drop_last=drop_last,
            seed=held.seed_of("loop", number),
            loader_workers=loader_workers,
            collate=collate,
            device=self.device,
            held=lambda: held.member.lanes,
            local_steps=held.local_steps,
            updates=updates,
            sampler=sampler,
            batch_sampler=batch_sampler,
        )
        if isinstance(loop, AsyncLoop):
            loop.prepare(number, source, epochs, loader_workers=loader_workers)
        return Batches(loop, source, number, epochs)

    @overload
    def lane(self, function: Callable[[Batch], Any]) -> LaneFunction: ...

    @overload
    def lane(self, *, capture: bool) -> Callable[[Callable[[Batch], Any]], LaneFunction]: ...

    def lane(self, function: Callable[[Batch], Any] | None = None, *, capture: bool = True) -> Any:
        """The loop's body as a function of a batch that gives its loss, or a tuple of which the
        first is the loss. On a GPU it is captured once, backward pass included, and replayed for
        each lane: a decorator, `run.step(lane(batch))` is all that is left of the body.

        The bits are those of a plain call. As Python it runs only while it is captured: what it
        computes is decided by the batch's tensors and the models. What cannot be captured goes on
        as a plain call and says why, once; `capture=False` asks for that. See docs/training.md.
        """
        if function is None:
            return partial(self.lane, capture=capture) if not capture else self.lane
        return LaneFunction(function, self._lanes, capture=capture)

    def step(
        self,
        loss: torch.Tensor,
        *more: torch.Tensor,
        only: Optimizer | Iterable[Optimizer] | None = None,
    ) -> None:
        """This batch's loss, a mean over its samples: backward, and with the last lane of the step
        combine, clip, update, report.

        Several losses are added up. `only`: in this step update what these optimizers hold, and
        nothing else (say the same for every batch of a step).
        """
        total, gradients = self._lanes.redeem(loss, more)
        chosen = [only] if isinstance(only, Optimizer) else only
        names = None if chosen is None else self._held.tracked.names_of(chosen)
        self._loop.backward(total, names, gradients)

    def log(self, name: str, value: float | torch.Tensor) -> None:
        """Show people a number beside the loss: in the loop's body its mean over all lanes of the
        step; in a hook the number itself."""
        if not self._lanes.note("run.log"):
            self._loop.lane.log(name, value)

    def stop_early(self) -> None:
        """End the loop: from a hook at once, from the loop's body when the step is complete.
        Enough if one lane asks for it."""
        if not self._lanes.note("run.stop_early"):
            self._loop.lane.stop()

    # --- together ------------------------------------------------------------------------------

    def evaluate(
        self,
        fn: Callable[[Batch], Mapping[str, Any] | torch.Tensor | float],
        data: Samples | Sharded | Any,
        *,
        batch: int = 256,
        collate: Collate | None = None,
    ) -> Evaluation:
        """Go once through the data, divided over all workers, models in eval mode, no gradients.

        `fn(batch)` gives sums over the batch's samples, by name; what comes back are their means
        over all samples. Every worker gets the same numbers, bit for bit, however many there are.
        Call it in a hook or outside the loop, on every worker.
        """
        return evaluate(self._loop, fn, data, batch, collate)

    def once(self, fn: Callable[[], Any]) -> Any:
        """Let one worker do it, and give everyone what it returned (as JSON keeps it). If that
        worker dies before, another one does it."""
        return self._loop.collective.together(lambda _lane: fn(), lanes=(0,))[0]

    # --- with others of the queue --------------------------------------------------------------

    def lock(self, name: str, *, timeout_s: float | None = None) -> SharedHold:
        """Wait for the lock of this name in the job's queue: `with run.lock("licence") as held:`.

        One worker of all jobs of the queue holds it at a time. `held.token` grows with each holder.
        It is free again when it is released, or when this worker has ended. See
        docs/coordination.md, also for what happens when machines fail.
        """
        return sharing.lock(self._shared, name, timeout_s)

    def semaphore(self, name: str, count: int, *, timeout_s: float | None = None) -> SharedHold:
        """The same for at most `count` holders at a time."""
        return sharing.semaphore(self._shared, name, count, timeout_s)

    def barrier(self, name: str) -> None:
        """Wait until all workers of the job's present view are here. Call it in a hook or outside
        the loop, after `track`, on every worker. Whoever dies is not waited for; whoever joins, or
        resumes the job, after it has opened passes."""
        self._loop.collective.barrier(name, self._loops)

    def config(
        self, name: str, default: Any = None, *, on_change: OnChange | None = None
    ) -> WatchedValue:
        """A value of the job's queue that people change while jobs run: `config.value`, set with
        `holdfast config set QUEUE NAME VALUE`. `on_change(config)` is called after each change, in
        a thread of its own. Workers see a change at different steps: what shapes the result
        belongs into `settings`."""
        return self._shared.config(name, default, on_change)

    def publish(
        self,
        model: nn.Module,
        name: str = "model",
        *,
        example: Any = None,
        metrics: Mapping[str, float] | None = None,
        build: Callable[..., nn.Module] | str | None = None,
        arguments: Mapping[str, Any] | None = None,
        alias: str | None = None,
        dynamic: Mapping[str, Any] | None = None,
    ) -> Published:
        """Publish the model as the next version of `name`. One worker writes, all know.

        `example` is one batch of inputs: a tensor, a tuple of them in the order of `forward`, or a
        dict by name. From it comes what the version takes and gives, and a replica must reproduce
        what the model makes of it. A replica builds the model anew: with `build`, a class or
        function of your modules (by default the model's own class), called with `arguments`, which
        JSON must be able to say. That is tried here and now. `metrics` are kept beside the last
        step's own; `alias` names the version at once.

        The batch's dimension may have any size if each row stands for itself. Others may where
        `example` is a list of examples that differ in them, or where `dynamic` says so:
        `{"x": (1, 2)}`, or with names `{"x": {1: "tokens"}}`, which tie dimensions together.

        Without `example`, and without a cluster, only the weights are written, as a safetensors
        file: to the job's store, or to the working folder.
        """
        # Not at the top: few workers publish, and all of them would wait for these imports.
        from holdfast.train.publishing import PublishRequest, publish  # noqa: PLC0415

        asked = PublishRequest(example, metrics, build, dict(arguments or {}), alias, dynamic)
        return publish(self._loop, model, name, asked)

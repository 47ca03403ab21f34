"""A member of an asynchronous job: its port, its server, its thread, its worker's traffic."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, NoReturn

from holdfast.storage import Blobs
from holdfast.system import logs
from holdfast.system.job_credentials import Credentials
from holdfast.system.tasks import OwnedThread, start_thread
from holdfast.train.members.effective import EffectiveSetting, in_effect
from holdfast.train.members.member import WorkerLeft
from holdfast.train.members.mesh import Mesh
from holdfast.train.modes.asynchronous import tickets
from holdfast.train.modes.asynchronous.messages import Peers, message
from holdfast.train.modes.asynchronous.server import RequestServer
from holdfast.train.modes.asynchronous.shard import Shard
from holdfast.train.modes.asynchronous.shard_server import (
    LEDGER,
    ShardServer,
    homes_of,
    servers_of,
)
from holdfast.train.modes.asynchronous.shares import ShareWriter, is_async
from holdfast.train.modes.asynchronous.traffic import Traffic
from holdfast.train.settings import Settings
from holdfast.train.states.checkpoints import restore
from holdfast.train.states.state import StateEntry, TrainingState
from holdfast.train.states.tracked import Tracked
from holdfast.wire.errors import Corrupt, HoldfastError, Missing, PeerLost, Usage
from holdfast.wire.limits import SAVE_AGAIN_S
from holdfast.wire.orders import View
from holdfast.worker.agent_client import AgentClient

# A push from weights that are more than so many updates old is refused: gradients from weights that
# old do harm, and a worker ten times slower than its peers is still within it.
ASYNC_STALENESS: Final = 8
# Whoever waits for something of others asks again after this.
ASYNC_ASK_AGAIN_S: Final = 0.05
# A server that leaves waits so long for the new homes of its names: well within its notice.
ASYNC_LEAVE_S: Final = 10.0

log = logs.get(__name__)


class AsyncMember:
    """One worker's part in its job. Its methods are for the worker's own thread."""

    def __init__(
        self,
        agent: AgentClient,
        blobs: Blobs | None,
        *,
        lanes: int,
        tracked: Tracked,
        settings: Settings,
    ) -> None:
        if not agent.ports:
            raise Usage(
                f"worker {agent.worker} of job {agent.job!r} has no port to meet its peers at",
                fix="start it with an agent of the same version",
            )
        self._agent = agent
        self._blobs = blobs
        self._lanes = lanes
        self._tracked = tracked
        self._settings = settings
        self._credentials = Credentials.read(agent.folder, agent.job)
        self._peers = Peers(self._credentials, agent.worker)
        self._others = Peers(self._credentials, agent.worker)  # the maintenance loop's
        self._news = threading.Event()
        self._closed = self._holds = self._ends = False
        self._server: RequestServer | None = None
        self._next_ledger: str | None = None  # where it is in the view without this worker
        self._thread: OwnedThread | None = None
        self.tickets = tickets.HeldTickets(self._ask_ledger)
        self.lanes = tuple(range(lanes))  # any lane may come to any worker
        self.mesh = Mesh(agent.worker, 0, 0, {})
        self.unsettled = False
        self.failure: BaseException | None = None  # of the maintenance loop

    @property
    def step(self) -> int:
        return self.tickets.step

    @property
    def view(self) -> View:
        return self._home.view

    @property
    def settings(self) -> dict[str, str]:
        """Those in effect now."""
        known = self._agent.settings[: self._home.view.settings]
        record = tuple(EffectiveSetting(name, value, at or 0) for name, value, at in known)
        return in_effect(record, self.step + 1)

    def _whole(self, name: str, default: int) -> int:
        """A whole number of the job's settings."""
        value = self._settings.get(name, default)
        if not isinstance(value, int) or value < 0:
            raise Usage(f"the setting {name}={value!r}", fix="give a whole number")
        return value

    @property
    def leaving(self) -> bool:
        return self._agent.leaving

    # --- the worker's life ---------------------------------------------------------------------

    def join(self, *, narrow: bool = False) -> None:
        """Wait for a view, and until all values are there. Raises `WorkerLeft`. `narrow`: gradients
        travel as bf16."""
        agent = self._agent
        shard = Shard(self._tracked, self._lanes, self._whole("staleness", ASYNC_STALENESS))
        groups = _groups(self._tracked, shard)
        self.traffic = Traffic(shard.names, self.ask, groups, narrow=narrow)
        self._home = ShardServer(agent.worker, self._lanes, shard, self.traffic)
        home = self._home
        answers = {
            "push": home.push,
            "give": home.give,
            "keep": home.keep,
            "flush": home.flush,
            "freeze": home.freeze,
            "tickets": lambda request: tickets.answer(home, request),
            "once": lambda request: tickets.once(home, request),
        }
        self._answers: dict[str, Callable[[TrainingState], TrainingState]] = answers
        where = (agent.host, agent.ports[0])
        self._server = RequestServer(self._credentials, agent.worker, where, answers, self._fail)
        agent.listen(self._news.set)
        agent.ready()
        self._thread = start_thread(self._maintain, "holdfast-maintain", self._fail)
        self.until(lambda: home.view.number > 0 and self.traffic.pull(home.homes))
        self.until(self._asked)
        self._holds = True
        agent.adopted(home.view.number, self.step)

    def _asked(self, *, back: bool = False) -> bool:
        self.tickets.ask(more=False, back=back)
        return True

    def renew(self) -> bool:
        return False

    def count(self) -> None:
        """Steps are counted by the ledger."""

    def boundary(self, metrics: Mapping[str, float] | None = None) -> bool:
        """Tell how far the job is."""
        self._agent.step(self.step, metrics)
        return False

    def until(self, done: Callable[[], bool]) -> None:
        """Ask again and again until it is done; a member that is away is waited for. `WorkerLeft`
        if the worker is asked to leave meanwhile."""
        try:
            while True:
                if self.failure is not None:
                    raise self.failure
                if self._agent.leaving and not self._ends:
                    self.leave()
                try:
                    if done():
                        return
                except PeerLost:
                    pass  # it is away: the next view has another home for what it had
                self._agent.waits(True)
                time.sleep(ASYNC_ASK_AGAIN_S)
        finally:
            self._agent.waits(False)

    def finish(self) -> None:
        """The script is through. Stay, and serve, until that is committed, or until it is asked to
        leave for another reason: which of the two it cannot know, so it only says that it left."""
        self._ends = True
        self._agent.ending(self.step)
        while not self._agent.leaving:
            if self.failure is not None:
                raise self.failure
            self._agent.waits(True)
            time.sleep(ASYNC_ASK_AGAIN_S)
        self._agent.left()
        self.close()

    def leave(self) -> NoReturn:
        """Give back what it holds, let the others have what it serves, and go."""
        if self._server is None:  # it has not joined yet: there is nothing to give
            self._agent.left()
            self.close()
            raise WorkerLeft(0)
        home, until_s = self._home, time.monotonic() + ASYNC_LEAVE_S
        given = self._agent.view(timeout_s=0)
        excluded = given is not None and bool(given.lanes)
        if given is not None and excluded:
            servers = servers_of(given.lanes, self._whole("servers", 0))
            self._next_ledger = given.addresses[homes_of({}, servers)[LEDGER]]
        home.send_copy(self._peers)
        reported = False
        while (not reported or (excluded and home.held)) and time.monotonic() < until_s:
            with suppress(PeerLost):  # the ledger is on its way to its new home
                reported = reported or self._asked(back=True)
            time.sleep(ASYNC_ASK_AGAIN_S)
        self._agent.left()
        self.close()
        raise WorkerLeft(0)

    def close(self) -> None:
        self._closed = True
        self._news.set()
        if self._thread is not None:
            self._thread.join(ASYNC_LEAVE_S)
        if self._server is not None:
            self._server.close()
        self._peers.close()
        self._others.close()
        self._agent.close()

    # --- asking --------------------------------------------------------------------------------

    def ask(self, home: int, notes: Mapping[str, Any], entries: list[StateEntry]) -> TrainingState:
        """Ask the member that serves something; this one itself without the network."""
        if home == self._agent.worker:
            who = {"job": self._agent.job, "worker": home}
            return self._answers[notes["ask"]](message({**notes, "from": who}, entries))
        address = self._home.view.addresses.get(home)
        if address is None:
            raise PeerLost(f"worker {home} is not in the view")
        return self._peers.call(address, notes, entries)

    def _ask_ledger(self, notes: Mapping[str, Any]) -> TrainingState:
        if self._next_ledger is not None and self._home.ledger is None:
            answer = self._peers.call(self._next_ledger, notes)
        else:
            answer = self.ask(self._home.homes[LEDGER], notes, [])
        if not answer.notes["here"]:
            raise PeerLost("the ledger is not at home")
        return answer

    def once(self, place: str, do: Callable[[], Any]) -> Any:
        """Let one worker do it; everyone gets what it returned."""
        found: list[Any] = []

        def asked() -> bool:
            answer = self._ask_ledger({"ask": "once", "place": place}).notes
            if answer.get("yours"):
                value = do()
                result = {"ask": "once", "place": place, "value": value}
                self.until(lambda: "value" in self._ask_ledger(result).notes)
                found.append(value)
                return True
            found.extend([answer["value"]] if "value" in answer else [])
            return bool(found)

        self.until(asked)
        return found[0]

    def flush(self) -> None:
        """The loop is over: what has been pushed becomes an update, and everyone has it."""
        home = self._home

        def flushed() -> bool:
            homes = home.homes
            if not self.traffic.pull(homes):
                return False
            for server in home.servers:
                self.ask(server, {"ask": "flush"}, [])
            return self.traffic.pull(homes)

        self.until(flushed)

    def homes(self) -> dict[str, int]:
        return self._home.homes

    # --- the maintenance loop --------------------------------------------------------------------

    def _maintain(self) -> None:
        shares = ShareWriter(self._agent, self._blobs, self._home, self._others, self._fail)
        complete, restored = True, None
        try:
            while not self._closed:
                self._news.wait(ASYNC_ASK_AGAIN_S)
                self._news.clear()
                view = self._agent.view(timeout_s=0)
                if view is not None and self._agent.worker in view.lanes:
                    restored = self._restored(view)
                    self._enter(view)
                    complete = False
                if not complete:
                    complete = self._home.fetch(self._others, restored)
                shares.answer(self.step)
                if self._home.copy_due():
                    self._home.send_copy(self._others)
        finally:
            shares.close()

    def _fail(self, error: BaseException) -> None:
        """A thread of this member has died: the worker's own thread raises it."""
        log.error("a thread has died", worker=self._agent.worker, exc_info=error)
        self.failure = self.failure or error

    def _enter(self, view: View) -> None:
        self._home.enter(view, self._whole("servers", 0))
        self.tickets.moved = True
        self._agent.adopted(view.number, self.step if self._holds else None)
        if self._ends:
            self._agent.ending(self.step)
        log.info("entered", worker=self._agent.worker, view=view.number, members=len(view.lanes))

    def _restored(self, view: View) -> TrainingState | None:
        """The checkpoint that this view begins with, if this member has nothing newer."""
        if not view.restore_step or self._holds:
            return None
        assert self._blobs is not None, "a checkpoint was committed, so there is a store"
        while not self._closed and self._agent.view(timeout_s=0) == view:
            try:
                state = restore(self._blobs, view.manifest, self._agent.job, view.restore_step)
            except (Corrupt, Missing) as error:
                log.warning("a checkpoint cannot be read", reason=str(error))
                self._agent.unreadable(view.restore_step, error.sentence)
                return None
            except HoldfastError as error:
                log.warning("a checkpoint cannot be read now", reason=str(error))
                self._news.wait(SAVE_AGAIN_S)
                continue
            if not is_async(state) or state.notes.get("lanes") != self._lanes:
                raise Usage(
                    "the job's checkpoint is of another mode, or of another number of lanes",
                    why="what servers keep is not what members of another mode keep",
                    fix="run it as it was begun, or start a new job",
                )
            return state
        return None


def _groups(tracked: Tracked, shard: Shard) -> dict[str, dict[str, Any]]:
    """By name the optimizer's group that a parameter is in; its learning rate may change."""
    groups: dict[int, dict[str, Any]] = {}
    for optimizer in tracked.optimizers.values():
        for group in optimizer.param_groups:
            groups.update((id(each), group) for each in group["params"])
    return {name: groups[id(each)] for name, each in shard.names.parameters.items()}

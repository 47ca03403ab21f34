"""What a member does for others, beside its worker: serves, moves, copies, checkpoints.

A thread looks at the newest view, at what checkpoints want and at what there is to copy; the
worker's own code may take as long as it likes meanwhile. Requests are answered in other threads.

*A move.* The new home of a name asks every member of the view for what it has of it. A member that
is asked for a name that is at home with it gives it away at once, even if it has not heard of the
new view: from then on pushes of that name find nobody, and are kept by the workers until they know
the new home. What was given away is kept as a copy.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

from holdfast.partition import Ring
from holdfast.system import logs
from holdfast.train.modes.asynchronous.ledger import TicketLedger
from holdfast.train.modes.asynchronous.messages import Peers, message
from holdfast.train.modes.asynchronous.server import nothing
from holdfast.train.modes.asynchronous.shard import Shard
from holdfast.train.modes.asynchronous.traffic import Traffic
from holdfast.train.states.state import StateEntry, TrainingState
from holdfast.wire.errors import PeerLost
from holdfast.wire.orders import View

# One member in so many also serves: it spends about as much on their pushes as on its own batches.
ASYNC_WORKERS_PER_SERVER: Final = 4
# A server sends a copy of what it holds to its neighbour after so many updates: its death costs so
# many of an optimizer's moments at most.
ASYNC_COPY_UPDATES: Final = 4

log = logs.get(__name__)
# Where the tickets are, on the ring like every other name; no parameter is called so.
LEDGER: Final = "/ledger"


def servers_of(members: Iterable[int], wanted: int = 0) -> tuple[int, ...]:
    """The members that serve: the first ones, which have been there longest. `wanted` of them, or
    one for every few members where nobody said how many; at least one."""
    ordered = sorted(members)
    count = wanted or len(ordered) // ASYNC_WORKERS_PER_SERVER
    return tuple(ordered[: max(1, count)])


def homes_of(sizes: Mapping[str, int], servers: Iterable[int]) -> dict[str, int]:
    """Which of these servers has each name, by how many bytes they are, and which the ledger. A
    server that comes or goes moves little more than its own share, and none has much more than the
    others unless a single name is that large. Pure: all members say the same."""
    ring = Ring(servers)
    return {**ring.place(sizes), LEDGER: ring.owner(LEDGER)}


class Copy(NamedTuple):
    """What somebody has of a name: `reported` has its value, and the tensors of `kept` (None: it
    knows nothing of what optimizers keep)."""

    version: int
    kept: Any
    reported: TrainingState


class ShardServer:
    """The names at home here, the copies of others', the ledger if it is here. Any thread."""

    def __init__(self, worker: int, lanes: int, shard: Shard, traffic: Traffic) -> None:
        self.worker = worker
        self.shard = shard
        self.traffic = traffic
        self.lanes = lanes
        self.lock = threading.RLock()
        self.ledger: TicketLedger | None = None
        self.ledger_copy: dict[str, Any] | None = None
        self.copies: dict[str, Copy] = {}
        self.view = View(0, {})
        self._sizes = {name: each.nbytes for name, each in shard.names.all.items()}
        self.servers: tuple[int, ...] = (worker,)
        self.homes = homes_of(self._sizes, self.servers)
        self._former: dict[int, str] = {}  # members of the view before: one may be about to leave
        self.frozen: tuple[int, list[StateEntry], dict[str, Any]] | None = None
        self._first = True  # in this view no copy was sent yet
        self._copied = (0, 0)  # updates and the ledger's version, when a copy was last sent

    @property
    def mine(self) -> set[str]:
        """The names that are to be at home here."""
        return {name for name, home in self.homes.items() if home == self.worker}

    @property
    def held(self) -> set[str]:
        """The names that are."""
        return {*self.shard.held, *([LEDGER] if self.ledger is not None else [])}

    # --- the view ------------------------------------------------------------------------------

    def enter(self, view: View, servers: int) -> None:
        """The members are these now: names may be at home elsewhere."""
        with self.lock:
            before = self.view.addresses
            self._former = {n: each for n, each in before.items() if n not in view.lanes}
            self.view, self.servers = view, servers_of(view.lanes, servers)
            self.homes = homes_of(self._sizes, self.servers)
            self._first = True
            self._retire(self.held - self.mine)
            if self.ledger is not None:
                self.ledger.members(view.lanes)

    def fetch(self, peers: Peers, restored: TrainingState | None) -> bool:
        """Bring home what is to be here; whether that is all."""
        view, wanted = self.view, sorted(self.mine - self.held)
        if not wanted:
            return True
        found: dict[str, list[Copy]] = {name: [] for name in wanted}
        ledgers: list[dict[str, Any]] = []
        reported = [self._have(wanted)]
        silent = False
        for number, address in {**view.addresses, **self._former}.items():
            if number != self.worker:
                notes = {"ask": "give", "names": wanted, "view": view.number}
                try:
                    reported.append(peers.call(address, notes))
                except PeerLost as error:
                    silent = silent or number in view.lanes
                    log.info("nothing from a member", member=number, why=error.why)
        if restored is not None:
            notes = restored.notes["async"]
            reported.append(TrainingState(0, restored.entries, notes))
        for each in reported:
            for name, note in each.notes["names"].items():
                if name in found:
                    found[name].append(Copy(note["version"], note["kept"], each))
            if each.notes.get("ledger") is not None:
                ledgers.append(each.notes["ledger"])
        return self._settle(view, found, ledgers, silent=silent)

    def _settle(
        self,
        view: View,
        found: dict[str, list[Copy]],
        ledgers: list[dict[str, Any]],
        *,
        silent: bool,
    ) -> bool:
        """Of each name the newest value, and the newest of what optimizers keep."""
        with self.lock:
            if view.number != self.view.number:
                return False
            complete = True
            for name, copies in found.items():
                if name == LEDGER:
                    complete = self._take_ledger(ledgers, silent=silent) and complete
                elif copies:
                    value = max(copies, key=lambda copy: copy.version)
                    whole = [copy for copy in copies if copy.kept is not None]
                    moments = max(whole, key=lambda copy: copy.version, default=value)
                    reported = (moments.kept, moments.reported)
                    self.shard.take(value.reported, name, value.version, *reported)
                elif view.restore_step == 0:
                    self.shard.take(None, name, 0, None, TrainingState(0))
                else:
                    complete = False  # somebody has it, and was not there just now
        log.info("at home", worker=self.worker, view=view.number, names=len(self.shard.held))
        return complete

    def _take_ledger(self, ledgers: list[dict[str, Any]], *, silent: bool) -> bool:
        restore = self.view.restore_step
        if ledgers:
            self.ledger = TicketLedger.of(max(ledgers, key=lambda body: int(body["version"])))
        elif restore == 0 or (restore is None and not silent):
            # If its home died before the first copy, the living tell what they have done.
            self.ledger = TicketLedger(self.lanes)
        else:
            return False
        self.ledger.members(self.view.lanes)
        return True

    def _have(self, names: Collection[str]) -> TrainingState:
        """What there is here of these names, at home or not, and what the worker has seen."""
        wanted = set(names)
        seen, notes = self.traffic.seen(wanted - self.copies.keys() - self.shard.held.keys())
        entries = list(seen)
        for name in wanted & self.copies.keys():
            copy = self.copies[name]
            notes[name] = {"version": copy.version, "kept": copy.kept}
            entries += [
                each
                for each in copy.reported.entries
                if each.name == name or each.name.startswith(f"{name}//")
            ]
            # The worker may have seen a newer value; moments of the copy go with it all the same.
            newer, versions = self.traffic.seen([name])
            if newer and versions[name]["version"] > copy.version:
                entries = [each for each in entries if each.name != name] + newer
                notes[name]["version"] = versions[name]["version"]
        return message({"names": notes, "ledger": self.ledger_copy}, entries)

    def _retire(self, names: Iterable[str]) -> None:
        """Not at home here any more, but kept as a copy."""
        names = set(names)
        if LEDGER in names and self.ledger is not None:
            self.ledger_copy, self.ledger = self.ledger.body(), None
        self.shard.flush(names)
        entries, notes = self.shard.spelled(names)
        reported = message({}, entries)
        self.copies.update(
            (name, Copy(note["version"], note["kept"], reported)) for name, note in notes.items()
        )
        self.shard.drop(names)

    # --- requests ------------------------------------------------------------------------------

    def push(self, request: TrainingState) -> TrainingState:
        refused, absent = self.shard.push(request)
        entries, versions = self.shard.newer(request.notes["known"])
        return message({"refused": refused, "absent": absent, "versions": versions}, entries)

    def give(self, request: TrainingState) -> TrainingState:
        """Another member is the home of these names in its view."""
        names = request.notes["names"]
        with self.lock:
            if request.notes["view"] >= self.view.number:
                self._retire(self.held & set(names))
            return self._have(names)

    def keep(self, request: TrainingState) -> TrainingState:
        """A copy of what a neighbour has."""
        with self.lock:
            for name, note in request.notes["names"].items():
                self.copies[name] = Copy(note["version"], note["kept"], request)
            self.ledger_copy = request.notes.get("ledger") or self.ledger_copy
        return nothing()

    def flush(self, _request: TrainingState) -> TrainingState:
        self.shard.flush()
        return nothing()

    def freeze(self, request: TrainingState) -> TrainingState:
        """Set aside what is at home here for this attempt of a checkpoint; say what it is."""
        attempt = int(request.notes["attempt"])
        with self.lock:
            if self.mine != self.held or self.view.number != request.notes["view"]:
                return nothing(ready=False)
            if self.frozen is None or self.frozen[0] != attempt:
                entries, notes = self.shard.spelled()
                entries.sort(key=lambda each: each.name)
                body = None if self.ledger is None else self.ledger.body()
                self.frozen = (attempt, entries, {"names": notes, "ledger": body})
            _, entries, frozen_notes = self.frozen
        inventory = [[each.name, each.dtype, list(each.shape)] for each in entries]
        return nothing(ready=True, entries=inventory, frozen=frozen_notes)

    # --- copies --------------------------------------------------------------------------------

    def copy_due(self) -> bool:
        updates, version = self._copied
        ledger = 0 if self.ledger is None else self.ledger.version - version
        if self._first and self.held:
            return True
        return self.shard.updates - updates >= ASYNC_COPY_UPDATES or (
            ledger >= ASYNC_COPY_UPDATES * self.lanes
        )

    def send_copy(self, peers: Peers) -> None:
        """Send what is at home here to the next member."""
        view = self.view
        after = [n for n in sorted(view.lanes) if n > self.worker] + sorted(view.lanes)
        if not after or after[0] == self.worker:
            self._first = False
            return
        with self.lock:
            ledger = self.ledger
            body = None if ledger is None else ledger.body()
            self._first = False
            self._copied = (self.shard.updates, 0 if ledger is None else ledger.version)
            entries, notes = self.shard.spelled()
        try:
            request = {"ask": "keep", "names": notes, "ledger": body}
            peers.call(view.addresses[after[0]], request, entries)
        except PeerLost as error:
            log.info("no copy was made", member=after[0], why=error.why)

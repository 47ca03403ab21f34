"""Nothing that a commit needs is ever removed, whoever does what in which order and dies where.

Actors (workers with a coordinator, a sweeper) run as threads over one store in memory. Before each
call to the store an actor waits for its turn, and a seeded scheduler gives the turns: so every
order of calls can come up, and a seed repeats it. An actor may be killed before or after any call.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from holdfast.storage import Blobs, Listed, Part, Retrying, put_part
from holdfast.storage.garbage import Marks, References, Sweeper, collectable, sweepable
from holdfast.storage.manifests import Manifest, manifest_key, verify, write_manifest
from holdfast.storage.memory import MemoryBackend
from holdfast.storage.parts import part_of
from holdfast.wire.errors import Missing, TimedOut
from tests.unit.storage.test_address import HandClock

GRACE_S = 100.0
WAIT_S = 20.0
# A part that was put is reported within this, or its attempt is over: well below half a grace.
REPORT_S = 40.0


class Killed(BaseException):
    """SIGKILL, for a thread."""


class Turns:
    """Lets one actor at a time make one call."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.actors: list[Actor] = []

    def run(self, rounds: int, between: Callable[[], None]) -> None:
        for _ in range(rounds):
            living = [actor for actor in self.actors if not actor.ended]
            if not living:
                return
            self.chance.choice(living).turn(self.chance)
            between()
        for actor in self.actors:
            actor.kill()


class Actor:
    """A thread that stops before each call to the store."""

    def __init__(self, program: Callable[[Actor], None]) -> None:
        self._go = threading.Semaphore(0)
        self._back = threading.Semaphore(0)
        self._fate = ""
        self.ended = False
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(program,), daemon=True)
        self._thread.start()
        self._back.acquire()

    def _run(self, program: Callable[[Actor], None]) -> None:
        try:
            program(self)
        except (Killed, TimedOut):
            # Where turns come slowly, a call may run out of time: it is then as good as killed.
            pass
        except BaseException as error:
            self.error = error
        self.ended = True
        self._back.release()

    def pause(self) -> None:
        """Called by the actor before a call: wait for the turn."""
        self._back.release()
        self._go.acquire()
        if self._fate == "before":
            raise Killed

    def after(self) -> None:
        """Called by the actor after a call."""
        if self._fate == "after":
            raise Killed

    def turn(self, chance: random.Random) -> None:
        """Called by the scheduler: let it make its call, and perhaps kill it."""
        self._fate = chance.choice(("before", "after")) if chance.random() < 0.02 else ""
        self._go.release()
        self._back.acquire()
        if self.error is not None:
            raise self.error

    def kill(self) -> None:
        if not self.ended:
            self._fate = "before"
            self._go.release()
            self._back.acquire()
        self._thread.join()


class TurnsBackend:
    """The store as one actor sees it: each call is a turn."""

    def __init__(self, actor: Actor, inner: MemoryBackend) -> None:
        self._actor = actor
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        if name == "describe":
            return method

        def call(*arguments: Any) -> Any:
            self._actor.pause()
            found = method(*arguments)
            if isinstance(found, Iterator):
                found = iter(list(found))
            self._actor.after()
            return found

        return call


@dataclass
class World:
    """A store, the commit records, and the attempts in flight."""

    chance: random.Random
    clock: HandClock = field(default_factory=HandClock)
    committed: dict[str, Manifest] = field(default_factory=dict)
    in_flight: set[str] = field(default_factory=set)
    commits: int = 0
    removed: int = 0

    def __post_init__(self) -> None:
        self.backend = MemoryBackend("model", self.clock)
        self.plain = Blobs(self.backend)

    def blobs(self, actor: Actor) -> Blobs:
        return Blobs(TurnsBackend(actor, self.backend), Retrying(clock=self.clock))

    def references(self) -> References:
        return References(frozenset(self.committed), frozenset(self.in_flight))

    def train(self, actor: Actor) -> None:
        """A job: put shares, report them, write a manifest, commit it, drop the oldest."""
        blobs = self.blobs(actor)
        for step in range(1, 40):
            started_s = self.clock.at_s
            parts: list[Part] = []
            for _ in range(self.chance.randrange(1, 4)):
                # Few different contents: the same bytes come again and again, also after years.
                parts.append(put_part(blobs, b"%d" % self.chance.randrange(6), grace_s=GRACE_S))
                if self.clock.at_s - started_s > REPORT_S:
                    break
                self.in_flight.add(parts[-1].key)
            if self.clock.at_s - started_s > REPORT_S:
                self.in_flight.clear()
                continue  # the coordinator has abandoned this attempt
            manifest = Manifest("job", step, 1, {1: tuple(parts)})
            key = write_manifest(blobs, manifest)
            if self.clock.at_s - started_s <= REPORT_S:
                self.committed[key] = manifest
                self.commits += 1
            if len(self.committed) > 2:
                del self.committed[next(iter(self.committed))]
            self.in_flight.clear()

    def sweep(self, actor: Actor) -> None:
        blobs = self.blobs(actor)
        sweeper = Sweeper(blobs, self.references, grace_s=GRACE_S, wait_s=WAIT_S)
        while True:
            self.removed += sweeper.step().removed

    def check(self) -> None:
        for manifest in self.committed.values():
            for _, part in manifest.parts():
                assert self.backend.stat(part.key), f"{part.key} is needed and gone"
            assert self.backend.stat(manifest_key(manifest))


def run_world(seed: int, rounds: int = 700) -> World:
    chance = random.Random(seed)
    world = World(chance)
    turns = Turns(chance)

    def between() -> None:
        # Mostly nothing happens for a while; sometimes for a long while.
        world.clock.at_s += chance.choice((0.0, 0.1, 1.0, 5.0))
        if chance.random() < 0.02 and not any(not a.ended for a in turns.actors[:1]):
            world.clock.at_s += 2 * GRACE_S
        for number, program in enumerate((world.train, world.sweep)):
            if turns.actors[number].ended:
                if number == 0:
                    world.in_flight.clear()
                turns.actors[number] = Actor(program)
        world.check()

    turns.actors = [Actor(world.train), Actor(world.sweep)]
    turns.run(rounds, between)
    for manifest in world.committed.values():
        verify(world.plain, manifest)
    return world


def test_no_order_of_calls_and_no_kill_makes_a_sweep_remove_what_a_commit_needs() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    worlds = [run_world(seed + number) for number in range(60)]
    assert sum(world.commits for world in worlds) > 200, "too little was committed to show anything"
    assert sum(world.removed for world in worlds) > 50, "too little was removed to show anything"


def _sabotaged(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.storage import garbage

    if name == "no grace":
        kept = garbage.collectable
        monkeypatch.setattr(
            garbage, "collectable", lambda f, c, i, now_s, g: kept(f, c, i, now_s, 0.0)
        )
    elif name == "old parts are left alone":
        real = put_part
        monkeypatch.setitem(globals(), "put_part", lambda b, d, grace_s: real(b, d, grace_s=1e9))
    elif name == "removal is not guarded":
        monkeypatch.setattr(
            Blobs, "delete_unless_newer", lambda self, key, than_s: self.delete(key) or True
        )
    else:
        monkeypatch.setattr(garbage, "read_manifest", lambda b, key: Manifest("job", 0, 0, {}))


@pytest.mark.parametrize(
    "name",
    ["no grace", "old parts are left alone", "removal is not guarded", "manifests are not read"],
)
def test_the_check_finds_a_sweeper_that_is_broken_on_purpose(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _sabotaged(name, monkeypatch)
    seed = 1
    with pytest.raises((AssertionError, Missing), match=r"needed and gone|is not in"):
        for number in range(400):
            run_world(seed + number)


def listed(key: str, modified_s: float = 0.0) -> Listed:
    return Listed(key, 1, modified_s)


def test_what_may_go_is_old_and_neither_in_a_committed_manifest_nor_in_flight() -> None:
    part, flying = part_of(b"a"), part_of(b"b")
    manifest = Manifest("job", 1, 1, {1: (part,)})
    found = [
        listed(part.key),
        listed(flying.key),
        listed(manifest_key(manifest)),
        listed("parts/old"),
        listed("parts/young", 950.0),
        listed("manifests/never-committed"),
    ]
    may_go = collectable(found, [manifest], {flying.key}, now_s=1_000.0, grace_s=100.0)
    assert may_go == {"parts/old", "manifests/never-committed"}
    assert collectable(found[4:5], [], (), now_s=1_050.0, grace_s=100.0) == {"parts/young"}


def test_what_was_written_again_since_it_was_marked_stays() -> None:
    marks = Marks(1_000.0, {"a": 1.0, "b": 2.0, "c": 3.0})
    found = [listed("a", 1.0), listed("b", 2.5), listed("c", 3.0), listed("d", 4.0)]
    assert sweepable(marks, found, {"a", "b", "d"}, 1_020.0, 20.0) == (listed("a", 1.0),)
    assert sweepable(marks, found, {"a", "b", "d"}, 1_019.0, 20.0) == ()


def test_marks_that_cannot_be_read_are_made_anew() -> None:
    clock = HandClock()
    blobs = Blobs(MemoryBackend("x", clock), Retrying(clock=clock))
    put_part(blobs, b"unneeded")
    for rubbish in (b"", b"[]", b'{"marked_s": 1}', b'{"marked_s": "x", "found": {}}'):
        blobs.put("garbage/marks.json", rubbish)
        clock.at_s += 200.0
        sweeper = Sweeper(blobs, References, grace_s=GRACE_S, wait_s=WAIT_S)
        assert sweeper.step().marked == 1
    clock.at_s += WAIT_S
    assert sweeper.step().removed == 1

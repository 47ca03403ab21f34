"""Locks, semaphores and values that workers share through their agents, under kills and pauses.

Agents, workers and the plane's server are real processes. Nobody measures time: whoever holds
something notes moments at which that was certain, and no two such moments may contradict.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast.coordination import Session, connect, shared
from tests.contract.planes import EmbeddedPlane
from tests.faults.agent_process import AgentProcess, until

SESSION_S = 4.0
STEADY_S = 60.0
WORKER = ["python", "-m", "tests.faults.sharing_worker"]


class Stage:
    """A plane, agents over it, and what their workers note."""

    def __init__(self, folder: Path, stack: ExitStack, session_s: float) -> None:
        self.folder = folder
        self.notes = folder / "notes"
        self.notes.mkdir()
        self._stack = stack
        self._plane = EmbeddedPlane(folder / "plane")
        stack.callback(self._plane.end)
        self.address = self._plane.address(session_s)
        self.session: Session = stack.enter_context(connect(self._plane.address(STEADY_S)))

    def agent(self, name: str) -> AgentProcess:
        made = AgentProcess(self.folder / name / "agent", light=True)
        made.folder.parent.mkdir()
        made.environment = {"TEST_PLANE": self.address}
        self._stack.enter_context(made)
        made.start()
        return made

    def start(
        self,
        agent: AgentProcess,
        job: str,
        *words: str,
        worker: int = 1,
        queue: str = "q",
        **more: float,
    ) -> None:
        command = [*WORKER, str(self.notes), *words]
        agent.ask("start", worker=worker, job=job, queue=queue, command=command, **more)

    def lines(self, who: str) -> list[list[str]]:
        path = self.notes / who
        text = path.read_text() if path.exists() else ""
        return [line.split() for line in text.splitlines() if text.endswith("\n") or line]

    def of(self, who: str, word: str) -> list[list[str]]:
        return [line for line in self.lines(who) if line[0] == word]

    def await_word(self, who: str, word: str) -> list[str]:
        return until(lambda: self.of(who, word), bool)[0]

    def pid(self, who: str) -> int:
        return int(self.await_word(who, "pid")[1])

    def waits(self, who: str) -> None:
        """Until this one stands in some line, and is not the holder."""

        def found() -> bool:
            return any(
                one.name.startswith(f"{who}@")
                for each in shared.holdings(self.session)
                for one in each.waiters
            )

        until(found, bool)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Callable[..., Stage]]:
    with ExitStack() as stack:
        yield lambda session_s=SESSION_S: Stage(tmp_path, stack, session_s)


class Span(NamedTuple):
    """Somebody certainly held it from `first_s` to `last_s`, under this token."""

    who: str
    token: int
    first_s: float
    last_s: float


def spans(stage: Stage, *whos: str) -> list[Span]:
    found = []
    for who in whos:
        token, first_s, last_s = 0, 0.0, 0.0
        for line in [*stage.lines(who), ["end"]]:
            if line[0] in ("got", "end") and token:
                found.append(Span(who, token, first_s, last_s))
            if line[0] == "got":
                token, first_s = int(line[1]), float(line[2])
                last_s = first_s
            elif line[0] == "sure":
                last_s = float(line[1])
    return found


def most_at_once(found: list[Span]) -> int:
    """How many held it at the same moment, at most."""
    return max(
        sum(1 for other in found if other.first_s <= one.first_s <= other.last_s) for one in found
    )


def test_a_killed_holder_of_another_job_frees_the_lock_at_once_and_the_token_grows(
    stage: Callable[..., Stage],
) -> None:
    made = stage(STEADY_S)  # no session ends in this test: it is the exit that frees it
    one, two = made.agent("one"), made.agent("two")
    made.start(one, "a", "lock", "licence", "1")
    first = made.await_word("a.1", "got")
    made.start(two, "b", "lock", "licence", "1")
    made.waits("b.1")
    (holding,) = shared.holdings(made.session, "q")
    assert [each.name for each in holding.holders] == ["a.1@node-1"]
    os.kill(made.pid("a.1"), signal.SIGKILL)
    second = made.await_word("b.1", "got")
    assert int(second[1]) > int(first[1])
    assert most_at_once(spans(made, "a.1", "b.1")) == 1
    (made.notes / "release.b.1").touch()
    made.await_word("b.1", "released")
    until(lambda: shared.holdings(made.session), lambda found: not found)
    # The name is not kept for ever either.
    until(
        lambda: made.session.nodes.children("/holdfast/shared/q/locks", fresh=True),
        lambda names: not names,
    )


def test_a_lock_of_another_queue_is_another_lock(stage: Callable[..., Stage]) -> None:
    made = stage(STEADY_S)
    agent = made.agent("one")
    made.start(agent, "a", "lock", "licence", "1", queue="theirs")
    made.await_word("a.1", "got")
    made.start(agent, "b", "lock", "licence", "1", queue="ours")
    made.await_word("b.1", "got")
    assert [each.queue for each in shared.holdings(made.session)] == ["ours", "theirs"]


def test_the_holder_learns_that_its_agent_was_killed_before_another_can_hold_it(
    stage: Callable[..., Stage],
) -> None:
    made = stage()
    one, two = made.agent("one"), made.agent("two")
    made.start(one, "a", "lock", "licence", "1")
    first = made.await_word("a.1", "got")
    made.start(two, "b", "lock", "licence", "1")
    made.waits("b.1")
    one.kill()
    one.start()
    made.await_word("a.1", "lost")
    second = made.await_word("b.1", "got")
    assert int(second[1]) > int(first[1])
    assert most_at_once(spans(made, "a.1", "b.1")) == 1


def test_whoever_waits_goes_on_waiting_with_the_next_agent(stage: Callable[..., Stage]) -> None:
    made = stage()
    one, two = made.agent("one"), made.agent("two")
    made.start(one, "a", "lock", "licence", "1")
    made.await_word("a.1", "got")
    made.start(two, "b", "lock", "licence", "1")
    made.waits("b.1")
    two.kill()
    two.start()
    (made.notes / "release.a.1").touch()
    made.await_word("b.1", "got")
    assert most_at_once(spans(made, "a.1", "b.1")) == 1


def test_the_holder_is_told_while_its_agent_is_paused_beyond_its_session(
    stage: Callable[..., Stage],
) -> None:
    made = stage()
    one, two = made.agent("one"), made.agent("two")
    made.start(one, "a", "lock", "licence", "1")
    first = made.await_word("a.1", "got")
    made.start(two, "b", "lock", "licence", "1")
    made.waits("b.1")
    assert one.process is not None
    one.process.send_signal(signal.SIGSTOP)
    try:
        made.await_word("a.1", "lost")
        second = made.await_word("b.1", "got")
    finally:
        one.process.send_signal(signal.SIGCONT)
    assert int(second[1]) > int(first[1])
    assert most_at_once(spans(made, "a.1", "b.1")) == 1
    # And afterwards it does not believe it again, nor take it from the new holder.
    made.start(one, "c", "lock", "licence", "1")
    made.waits("c.1")
    assert len(made.of("a.1", "got")) == 1


@pytest.mark.parametrize("seed", [3, 4])
def test_a_semaphore_has_never_more_holders_than_it_counts_while_workers_and_agents_are_killed(
    stage: Callable[..., Stage], seed: int
) -> None:
    chance = random.Random(seed)
    made = stage()
    agents = [made.agent("one"), made.agent("two")]
    whos, living = [], []
    for number in range(8):
        made.start(agents[number % 2], f"j{number}", "semaphore", "band", "2", "again")
        whos.append(f"j{number}.1")
        living.append(f"j{number}.1")
    until(lambda: sum(len(made.of(who, "got")) for who in whos), lambda found: found > 6)
    for turn in range(4):
        victim = living.pop(chance.randrange(len(living)))
        os.kill(made.pid(victim), signal.SIGKILL)
        if turn == 1:
            agents[0].kill()
            agents[0].start()
        before = sum(len(made.of(who, "got")) for who in whos)
        until(
            lambda before=before: sum(len(made.of(who, "got")) for who in whos) - before,  # type: ignore[misc]
            lambda more: more > 4,
        )
    found = spans(made, *whos)
    assert most_at_once(found) <= 2
    assert len({span.token for span in found}) == len(found)


def test_a_changed_value_reaches_the_callback_of_its_queue_alone(
    stage: Callable[..., Stage],
) -> None:
    made = stage(STEADY_S)
    agent = made.agent("one")
    shared.put(made.session, "q", "thresholds", [0.1, 0.9])
    made.start(agent, "a", "config", "thresholds", "0")
    made.start(agent, "b", "config", "thresholds", "0", queue="other")
    assert made.await_word("a.1", "value")[1:] == ["[0.1,", "0.9]"]
    assert made.await_word("b.1", "value")[1:] == ['"none"']
    shared.put(made.session, "q", "thresholds", {"low": 1})
    assert made.await_word("a.1", "changed")[1:] == ['{"low":', "1}"]
    # A later agent brings what was changed in between.
    agent.kill()
    shared.put(made.session, "q", "thresholds", 7)
    agent.start()
    until(lambda: made.of("a.1", "changed"), lambda found: found[-1][1:] == ["7"])
    shared.remove(made.session, "q", "thresholds")
    until(lambda: made.of("a.1", "changed"), lambda found: found[-1][1:] == ['"none"'])
    assert not made.of("b.1", "changed")


def test_a_worker_that_waits_for_a_lock_has_not_hung_and_leaves_when_it_is_asked_to(
    stage: Callable[..., Stage],
) -> None:
    made = stage(STEADY_S)
    agent = made.agent("one")
    made.start(agent, "a", "lock", "licence", "1")
    made.await_word("a.1", "got")
    made.start(agent, "b", "lock", "licence", "1", worker=2, silence_s=2.0)
    made.waits("b.2")
    seen = len(made.of("a.1", "sure"))
    # Three times its silence: the holder notes about fifty such moments a second.
    until(lambda: len(made.of("a.1", "sure")), lambda now: now > seen + 400)
    assert agent.ask("look")["2"]["exit"] is None
    agent.ask("stop", job="b", worker=2, notice_s=120.0)
    assert agent.until(lambda now: now["2"]["exit"])["2"]["exit"] == "left"
    assert made.of("b.2", "left")
    # Its place in the line is given up beside the report of its end.
    until(lambda: shared.holdings(made.session, "q"), lambda found: not found[0].waiters)

"""A leader dies, another is paused, the server is killed: and nothing is lost.

    make demo-coordination
    python examples/coordination_demo.py [FOLDER]

Everything here is real: processes, sockets, files, SIGKILL and SIGSTOP. Each claim is checked; the
exit code is 0 only if all of them held. What it writes is in FOLDER, `.demo/` if none is given.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import ctrl_c
from contender import ELECTION, FACTS
from demo_stage import Contender, DemoError, Screen, Server, wait_for
from rich.console import Console
from rich.table import Table

from holdfast.coordination import Election, Leader, Session, connect, inspection
from holdfast.wire.errors import HoldfastError

DEFAULT_FOLDER = Path(__file__).resolve().parents[1] / ".demo"
NAMES = ("ada", "grace", "barbara")
# Short, so that the demo is: a leader that is silent for so long has lost its session.
SESSION = "timeout_s=5"
WRITES_AWAITED = 30


class Demo:
    """The acts of the demo, in order, and the claims that they proved or not."""

    def __init__(self, screen: Screen, folder: Path) -> None:
        self.screen = screen
        self.folder = folder
        self.server = Server(folder)
        self.contenders: list[Contender] = []
        self.claims: list[tuple[bool, str, str]] = []

    # --- the acts -------------------------------------------------------------------------------

    def play(self) -> None:
        self.screen.say("starting a coordination server ...")
        self.server.start()
        self.screen.server = f"listens on {self.server.listen}"
        address = f"zk://{self.server.listen}?{SESSION}&secret_file={self.server.data}/access"
        self.screen.say(f"it listens on {self.server.listen}, its data is in {self.server.data}")
        with connect(address) as session:
            election = Election(session, ELECTION, "the audience")
            self.elect(address, election)
            self.kill_the_leader(election)
            self.pause_the_leader(election)
            self.kill_the_server(election)
            self.judge_the_history(session)

    def elect(self, address: str, election: Election) -> None:
        self.contenders = [Contender(name, address, self.folder) for name in NAMES]
        self.screen.contenders = self.contenders
        self.screen.say("three processes want to lead")
        leader = self.next_leader(election, after=0)
        self.let_write(leader)
        others = [one for one in self.contenders if one.name != leader.name]
        one_leads = all(one.state == "waits" for one in others)
        self.claim(one_leads, "one of three leads", f"{leader.name}, term {leader.term}")

    def kill_the_leader(self, election: Election) -> None:
        before = self.leader_of(election)
        victim = self.contender(before.name)
        self.screen.say(f"kill -9 {victim.process.pid}: {victim.name} is gone", "bold red")
        victim.kill()
        after = self.next_leader(election, after=before.term)
        self.let_write(after)
        self.claim(
            after.name != before.name and after.term > before.term,
            "the leader was killed: the next one has a higher term",
            f"{before.name}, term {before.term} → {after.name}, term {after.term}",
        )

    def pause_the_leader(self, election: Election) -> None:
        before = self.leader_of(election)
        victim = self.contender(before.name)
        self.screen.say(f"SIGSTOP {victim.process.pid}: {victim.name} sleeps", "bold yellow")
        victim.pause()
        after = self.next_leader(election, after=before.term)
        self.let_write(after)
        self.screen.say(f"{victim.name} wakes, and still believes that it leads")
        victim.wake()
        wait_for("the woken leader's write is refused", lambda: victim.fenced)
        told = victim.fenced[-1]
        self.screen.say(f"its write {told['fact']} was refused: {told['why']}", "magenta")
        self.claim(
            told["term"] == before.term < after.term and not told["acting"],
            "a deposed leader's write is refused",
            f"term {told['term']} is fenced off by term {after.term}",
        )

    def kill_the_server(self, election: Election) -> None:
        before, leader = self.server.status(), self.leader_of(election)
        holder = self.contender(leader.name)
        session, written = holder.session, len(holder.acknowledged)
        self.screen.say("kill -9 of the server, while the leader writes", "bold red")
        self.screen.server = "killed"
        self.server.kill()
        ctrl_c.pause(0.3)
        self.server.start()
        self.screen.server = f"listens on {self.server.listen} again"
        self.screen.say("the server is back; it replayed its log")
        after = self.server.status()
        self.claim(
            int(after.zxid, 16) >= int(before.zxid, 16),
            "the server was killed: its zxid did not go back",
            f"{before.zxid} → {after.zxid}",
        )
        wait_for("the leader goes on writing", lambda: len(holder.acknowledged) > written + 10)
        same = self.leader_of(election) == leader and holder.session == session
        self.claim(
            same and holder.term == leader.term,
            "sessions survived: the leader kept its term",
            f"{leader.name}, term {leader.term}, session {session:#x}",
        )

    def judge_the_history(self, session: Session) -> None:
        self.screen.say("comparing what was acknowledged with what is there ...")
        for one in self.contenders:
            one.end()
        acknowledged = {fact for one in self.contenders for fact in one.acknowledged}
        facts = [
            seen for seen in inspection.below(session, FACTS, depth=1)[0] if seen.path != FACTS
        ]
        in_order = sorted(facts, key=lambda seen: seen.czxid)
        names = [seen.path.rpartition("/")[2] for seen in in_order]
        missing = acknowledged - set(names)
        self.claim(
            not missing and len(acknowledged) > 3 * WRITES_AWAITED,
            "every acknowledged write is there",
            f"{len(acknowledged) - len(missing)} of {len(acknowledged)}",
        )
        terms = [int(name.split("-")[0]) for name in names]
        self.claim(
            terms == sorted(terms),
            "no write of an older term after one of a newer term",
            f"{len(terms)} writes in terms {', '.join(map(str, sorted(set(terms))))}",
        )

    # --- what the acts share --------------------------------------------------------------------

    def claim(self, held: bool, what: str, seen: str) -> None:
        ctrl_c.check()
        self.claims.append((held, what, seen))
        self.screen.say(f"{'✔' if held else '✘'} {what}: {seen}", "green" if held else "bold red")

    def contender(self, name: str) -> Contender:
        return next(one for one in self.contenders if one.name == name)

    def leader_of(self, election: Election) -> Leader:
        leader = election.current_leader()
        if leader is None:
            raise DemoError("nobody leads")
        return leader

    def next_leader(self, election: Election, *, after: int) -> Leader:
        """Wait for a term after `after`, and for its leader to know."""
        found: list[Leader] = []

        def elected() -> bool:
            leader = election.current_leader()
            if leader is None or leader.term <= after:
                return False
            found.append(leader)
            return bool(self.contender(leader.name).term == leader.term)

        wait_for(f"somebody leads after term {after}", elected)
        self.screen.say(f"{found[-1].name} leads, term {found[-1].term}", "bold green")
        return found[-1]

    def let_write(self, leader: Leader) -> None:
        holder = self.contender(leader.name)
        goal = len(holder.acknowledged) + WRITES_AWAITED
        wait_for(f"{leader.name} writes", lambda: len(holder.acknowledged) >= goal)

    def end(self) -> None:
        for one in self.contenders:
            one.end()
        self.server.end()

    def summary(self) -> Table:
        grid = Table(title="What was checked", title_justify="left", title_style="bold", box=None)
        for column in ("", "claim", "seen"):
            grid.add_column(column, header_style="dim", overflow="fold")
        for held, what, seen in self.claims:
            grid.add_row("[green]✔[/]" if held else "[bold red]✘[/]", what, seen)
        return grid


def main(folder: Path) -> int:
    console = Console(highlight=False)
    for left in ("coord", "server.log", *(f"{name}.log" for name in NAMES)):
        _remove(folder / left)
    folder.mkdir(parents=True, exist_ok=True)
    screen = Screen(console)
    demo = Demo(screen, folder)
    code = 0
    try:
        with screen:
            try:
                demo.play()
            finally:
                demo.end()
    except KeyboardInterrupt:
        console.print("interrupted; everything that was started has ended")
        return 130
    except (DemoError, HoldfastError) as error:
        console.print(f"[bold red]the demo failed[/] {error}", markup=True)
        console.print(f"  logs: {folder}")
        code = 1
    console.print()
    console.print(demo.summary())
    if code or not all(held for held, _, _ in demo.claims):
        return 1
    console.print("\n[bold]Next[/]")
    for command, why in (
        ("doctor", "is this machine ready?"),
        (f"coord check {_short(folder / 'coord')}", "what the demo wrote"),
        ("coord serve --data ./coord", "a server of your own"),
    ):
        console.print(f"  .venv/bin/holdfast {command:<28} {why}")
    return 0


def _remove(path: Path) -> None:
    """Only what an earlier demo made: the folder may be the user's."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _short(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


if __name__ == "__main__":
    with ctrl_c.taken():
        sys.exit(main(Path(sys.argv[1]).absolute() if sys.argv[1:] else DEFAULT_FOLDER))

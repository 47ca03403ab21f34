"""`python -m tests.proofs.chaos`: kill, cut, pause and fill a cluster; check its histories."""

from __future__ import annotations

import argparse
import json
import secrets
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, TextIO

from tests.proofs.chaos import disks, network
from tests.proofs.chaos.plan import MODELS, STORES, Plan
from tests.proofs.control.checks import Violation
from tests.proofs.running import Words, conducted, hear_signals
from tests.servers import zookeeper_missing
from tests.servers.s3 import rclone_missing

EXAMPLES: Final = """examples:
  python -m tests.proofs.chaos --minutes 30 --seed 7             a long run
  python -m tests.proofs.chaos --minutes 30 --seed 7 --plan      only what it would do
  python -m tests.proofs.chaos --minutes 5 --ensemble            over three real ZooKeeper servers
  python -m tests.proofs.chaos --minutes 2 --no-namespaces       without root, all on the loopback
"""
# Not on a terminal: a line for people who read a log.
TELL_S: Final = 15.0


class Screen:
    """Lines for people; on a terminal the last one is written over while it goes on."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = stream.isatty()
        self._told_s = 0.0
        self._what = ""

    def say(self, text: str) -> None:
        self._write(f"{text}\n")

    def look(self, text: str) -> None:
        """How far it is. Told often."""
        now_s = time.monotonic()
        if self._live:
            if now_s > self._told_s + 0.2:
                self._told_s = now_s
                self._write(text[: shutil.get_terminal_size().columns - 1])
            return
        # What it waits for is told once, how far it is now and then.
        what = "" if text[:1].isdecimal() else text
        if now_s > self._told_s + TELL_S or what != self._what:
            self._told_s, self._what = now_s, what
            self.say(text)

    def _write(self, text: str) -> None:
        self._stream.write(f"\r\033[K{text}" if self._live else text)
        self._stream.flush()


def run(plan: Plan, *, as_json: bool, keep: bool) -> int:
    """One run over a folder of its own, which is kept if a promise was broken."""
    # With torch and all that is trained: whoever only wants a plan does not wait for it.
    from tests.proofs.chaos.campaign import Campaign

    screen = Screen(sys.stderr if as_json else sys.stdout)
    for left in (*network.sweep(), *disks.sweep()):
        screen.say(f"left by a run that was killed, and removed: {left}")
    folder = Path(tempfile.mkdtemp(prefix="holdfast-chaos-"))
    where = "in network namespaces" if plan.namespaces else "on the loopback"
    screen.say(f"{plan.minutes:g} minutes of chaos {where}, seed {plan.seed}, data in {folder}")
    screen.say(f"again: {plan.command()}")
    campaign = Campaign(plan, folder, screen.look)
    words = Words(campaign.told, plan.command(), story=campaign.story)
    code = conducted(campaign.run, folder, words, Violation, screen.say, keep=keep)
    if as_json:
        told = {"seed": plan.seed, "command": plan.command(), "folder": str(folder)}
        print(json.dumps({**told, "figures": campaign.figures(), "violations": campaign.broken}))
    return code


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.proofs.chaos",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--minutes", type=float, default=30.0, help="how long there are faults (30)")
    add("--seed", type=int, default=secrets.randbits(32), help="the same seed draws the same plan")
    add("--ensemble", action="store_true", help="three ZooKeeper servers, not our own one")
    add("--no-namespaces", action="store_true", help="all on the loopback; needs no root")
    add("--no-disks", action="store_true", help="no disk is filled; needs no root")
    add("--store", choices=STORES, help="s3: a server of its own (where there is rclone)")
    add("--rate", type=float, default=Plan.rate, help="requests a second")
    add("--epochs", type=int, default=Plan.epochs, help="of a training; six steps each")
    add("--models", nargs="+", choices=MODELS, default=MODELS, help="trained in turn")
    add("--plan", action="store_true", help="print what would be done, and do nothing")
    add("--keep", action="store_true", help="keep the folder with all records, however it ends")
    add("--json", action="store_true", help="print the figures as JSON")
    given = parser.parse_args()
    store, namespaces, small = given.store or "s3", not given.no_namespaces, not given.no_disks
    if namespaces and not given.plan and (why := network.missing()):
        print(f"without network namespaces, all on the loopback: {why}", file=sys.stderr)
        namespaces = False
    if small and not given.plan and (why := disks.missing()):
        print(f"without disks that are filled: {why}", file=sys.stderr)
        small = False
    if store == "s3" and not given.plan and (why := rclone_missing()):
        print(f"with a store in a folder: {why}", file=sys.stderr)
        if given.store:
            return 2
        store = "folder"
    plan = Plan(
        seed=given.seed,
        minutes=given.minutes,
        ensemble=given.ensemble,
        namespaces=namespaces,
        disks=small,
        store=store,
        rate=given.rate,
        epochs=given.epochs,
        models=tuple(given.models),
    )
    if given.plan:
        script = plan.script()
        print(json.dumps([str(act) for act in script]) if given.json else script)
        return 0
    if given.ensemble and (why := zookeeper_missing()):
        print(why, file=sys.stderr)
        return 2
    hear_signals()
    return run(plan, as_json=given.json, keep=given.keep)


if __name__ == "__main__":
    sys.exit(main())

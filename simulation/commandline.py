"""The command line of a kind of world: look for trouble in many seeds, or see one of them again."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Sequence
from typing import Final

from simulation.runner import run_many
from simulation.search import Totals, failure_report, replay_command, shrink
from simulation.verdict import Kind

INTERRUPTED: Final = 130
# Of so many failing seeds the whole story is told; of more of them only how to replay each.
TOLD_MAX: Final = 5
# Between two lines of progress: on a terminal, and in a log.
_SHOWN_S: Final = 1.0
_LOGGED_S: Final = 60.0


def run_command(kind: Kind, what: str, arguments: Sequence[str] | None = None) -> int:
    """0: nothing was found. 1: something was. 130: interrupted, and nothing was found so far."""
    options = _parser(kind, what).parse_args(arguments)
    if options.seed is not None:
        off = frozenset(name.strip() for name in options.off.split(",") if name.strip())
        return _replay(kind, options.seed, off, options.json)
    return _Search(kind, options).run()


def _parser(kind: Kind, what: str) -> argparse.ArgumentParser:
    command = f"python -m {kind.module}"
    parser = argparse.ArgumentParser(
        prog=command,
        description=what,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"""examples:
  {command} --seeds 1000000 --jobs 2     # look for trouble on two cores
  {command} --from 40001 --minutes 10    # go on where another search ended
  {command} --seed 17                    # the whole story of one seed
  {command} --seed 17 --off "drop"       # the same without some of its faults""",
    )
    parser.add_argument("--seeds", type=int, default=2_000, help="how many seeds to run")
    parser.add_argument("--from", dest="first", type=int, default=1, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the work")
    parser.add_argument("--minutes", type=float, help="stop after this time, whatever is left")
    parser.add_argument(
        "--progress", action="store_true", help="show it though this is no terminal"
    )
    parser.add_argument("--seed", type=int, help="run one seed and tell its whole story")
    parser.add_argument("--off", default="", help="with --seed: faults that do not happen")
    parser.add_argument(
        "--digest", action="store_true", help="with --seeds: one word for all traces"
    )
    parser.add_argument("--json", action="store_true", help="for programs")
    return parser


def _replay(kind: Kind, seed: int, off: frozenset[str], as_json: bool) -> int:
    verdict = kind.run(seed, off, traced=True)
    if as_json:
        shown = {
            "seed": seed,
            "rule": verdict.rule,
            "what": verdict.what,
            "faults": verdict.faults,
            "digest": verdict.digest,
            "story": verdict.story,
        }
        print(json.dumps(shown))
    else:
        print("\n".join(verdict.story))
        print(f"seed {seed}: {verdict.rule or 'nothing is wrong'} {verdict.what}".rstrip())
        print(f"faults: {', '.join(verdict.faults) or 'none'}; trace {verdict.digest}")
    return 0 if verdict.ok else 1


class _Search:
    """One search: what it shows on the way and at the end."""

    def __init__(self, kind: Kind, options: argparse.Namespace) -> None:
        self._kind = kind
        self._options = options
        self._began_s = time.monotonic()
        self._shown_s = self._began_s
        self._told = 0
        self._terminal = sys.stderr.isatty() and not options.json

    def run(self) -> int:
        options, totals, interrupted = self._options, Totals(), False
        until_s = self._began_s + 60 * options.minutes if options.minutes else None
        running = run_many(
            self._kind,
            options.first,
            options.seeds,
            jobs=options.jobs,
            until_s=until_s,
            traced=options.digest,
        )
        try:
            for totals in running:
                self._tell_failures(totals)
                self._show_progress(totals)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            running.close()
        if self._terminal:
            print(file=sys.stderr)
        self._finish(totals)
        if totals.failures:
            return 1
        return INTERRUPTED if interrupted else 0

    def _tell_failures(self, totals: Totals) -> None:
        if self._options.json:
            return
        for verdict in totals.failures[self._told :]:
            self._told += 1
            if self._told <= TOLD_MAX:
                small, off = shrink(self._kind, verdict)
                print(failure_report(self._kind, small, off), flush=True)
            else:
                replay = replay_command(self._kind, verdict.seed)
                print(f"seed {verdict.seed} too: {verdict.rule}; {replay}", flush=True)

    def _show_progress(self, totals: Totals) -> None:
        now_s = time.monotonic()
        pause_s = _SHOWN_S if self._terminal else _LOGGED_S
        if now_s < self._shown_s + pause_s or not (self._terminal or self._options.progress):
            return
        self._shown_s = now_s
        left_s = (now_s - self._began_s) * (self._options.seeds / totals.runs - 1)
        line = (
            f"{totals.runs:,} of {self._options.seeds:,} schedules, {len(totals.failures)} failed; "
            f"{totals.runs / (now_s - self._began_s):.0f}/s, {totals.events:,} events, "
            f"{totals.faults:,} faults; {left_s / 60:.0f} min left"
        )
        end = {"end": ""} if self._terminal else {}
        print(f"\r{line} " if self._terminal else line, file=sys.stderr, flush=True, **end)

    def _finish(self, totals: Totals) -> None:
        options, wall_s = self._options, time.monotonic() - self._began_s
        if options.json:
            print(json.dumps(self._as_json(totals, wall_s)))
            return
        print(_rate(totals, wall_s))
        by_kind = (f"{kind} {count:,}" for kind, count in sorted(totals.struck.items()))
        print(f"faults: {', '.join(by_kind) or 'none'}")
        if options.digest:
            print(f"traces: {_digest(totals)}")
        if totals.runs < options.seeds:
            print(f"to go on: python -m {self._kind.module} {self._rest(totals)}")

    def _rest(self, totals: Totals) -> str:
        options = self._options
        left, jobs = options.seeds - totals.runs, options.jobs
        return f"--from {options.first + totals.runs} --seeds {left} --jobs {jobs}"

    def _as_json(self, totals: Totals, wall_s: float) -> dict[str, object]:
        return {
            "first": self._options.first,
            "next": self._options.first + totals.runs,
            "schedules": totals.runs,
            "events": totals.events,
            "faults": totals.faults,
            "faults_by_kind": dict(sorted(totals.struck.items())),
            "happened": dict(sorted(totals.happened.items())),
            "violations": len(totals.failures),
            "simulated_s": round(totals.simulated_s, 3),
            "cpu_s": round(totals.cpu_s, 3),
            "wall_s": round(wall_s, 3),
            "schedules_per_s": round(totals.runs / max(wall_s, 1e-9), 1),
            "schedules_per_core_s": round(totals.runs / max(totals.cpu_s, 1e-9), 1),
            "digest": _digest(totals) if totals.digests else None,
            "failures": [
                {
                    "seed": verdict.seed,
                    "rule": verdict.rule,
                    "what": verdict.what,
                    "replay": replay_command(self._kind, verdict.seed),
                }
                for verdict in totals.failures
            ],
        }


def _rate(totals: Totals, wall_s: float) -> str:
    cpu_s = max(totals.cpu_s, 1e-9)
    return (
        f"{totals.runs:,} schedules, {len(totals.failures)} failed; "
        f"{totals.events:,} events and {totals.faults:,} faults in {wall_s:.0f} s: "
        f"{totals.runs / cpu_s:.0f} schedules/s and {totals.events / cpu_s:,.0f} events/s of one "
        f"core; {totals.simulated_s / 3600:.1f} h simulated"
    )


def _digest(totals: Totals) -> str:
    return hashlib.sha256("".join(totals.digests).encode()).hexdigest()[:16]

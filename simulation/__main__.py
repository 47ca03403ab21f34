"""`python -m simulation`: look for trouble in many seeds, or see one of them again."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Sequence

from simulation.search import Totals, explore, replay_command, shrink, told
from simulation.world import World


def main(arguments: Sequence[str] | None = None) -> int:
    """0: nothing was found. 1: something was."""
    options = _parser().parse_args(arguments)
    if options.seed is not None:
        off = frozenset(name.strip() for name in options.off.split(",") if name.strip())
        return _replay(options.seed, off, options.json)
    return _search(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2_000, help="how many seeds to run")
    parser.add_argument("--from", dest="first", type=int, default=1, help="the first seed")
    parser.add_argument("--minutes", type=float, help="stop after this time, whatever is left")
    parser.add_argument("--seed", type=int, help="run one seed and tell its whole story")
    parser.add_argument("--off", default="", help="with --seed: faults that do not happen")
    parser.add_argument(
        "--digest", action="store_true", help="with --seeds: one word for all traces"
    )
    parser.add_argument("--json", action="store_true", help="for programs")
    return parser


def _replay(seed: int, off: frozenset[str], as_json: bool) -> int:
    world = World(seed, off)
    verdict = world.run(traced=True)
    story = world.kernel.story(len(world.kernel.trace))
    if as_json:
        shown = {
            "seed": seed,
            "rule": verdict.rule,
            "what": verdict.what,
            "faults": verdict.faults,
            "digest": verdict.digest,
            "story": story,
        }
        print(json.dumps(shown))
    else:
        print("\n".join(story))
        print(f"seed {seed}: {verdict.rule or 'nothing is wrong'} {verdict.what}".rstrip())
        print(f"faults: {', '.join(verdict.faults) or 'none'}; trace {verdict.digest}")
    return 0 if verdict.ok else 1


def _search(options: argparse.Namespace) -> int:
    until_s = time.monotonic() + 60 * options.minutes if options.minutes else None
    totals, told_of, shown_s = Totals(), 0, time.monotonic()
    lively = sys.stderr.isatty() and not options.json
    for totals in explore(options.first, options.seeds, until_s=until_s, traced=options.digest):
        while told_of < len(totals.failures) and not options.json:
            small, off = shrink(totals.failures[told_of])
            print(told(small, off), flush=True)
            told_of += 1
        if lively and time.monotonic() > shown_s + 1:
            shown_s = time.monotonic()
            print(f"\r{_rate(totals)}", end="", file=sys.stderr, flush=True)
    if lively:
        print(file=sys.stderr)
    print(json.dumps(_as_json(totals, options.first)) if options.json else _rate(totals))
    if options.digest and not options.json:
        print(f"traces: {_digest(totals)}")
    return 1 if totals.failures else 0


def _rate(totals: Totals) -> str:
    cpu_s = max(totals.cpu_s, 1e-9)
    return (
        f"{totals.runs} schedules, {len(totals.failures)} failed; "
        f"{totals.runs / cpu_s:.0f} schedules/s and {totals.events / cpu_s:.0f} events/s of one "
        f"core; {totals.faults} faults injected; {totals.simulated_s / 3600:.1f} h simulated"
    )


def _digest(totals: Totals) -> str:
    return hashlib.sha256("".join(totals.digests).encode()).hexdigest()[:16]


def _as_json(totals: Totals, first: int) -> dict[str, object]:
    return {
        "first": first,
        "schedules": totals.runs,
        "events": totals.events,
        "faults": totals.faults,
        "faults_by_kind": dict(sorted(totals.struck.items())),
        "happened": dict(sorted(totals.happened.items())),
        "simulated_s": round(totals.simulated_s, 3),
        "cpu_s": round(totals.cpu_s, 3),
        "digest": _digest(totals) if totals.digests else None,
        "failures": [
            {
                "seed": verdict.seed,
                "rule": verdict.rule,
                "what": verdict.what,
                "replay": replay_command(verdict.seed),
            }
            for verdict in totals.failures
        ],
    }


if __name__ == "__main__":
    sys.exit(main())

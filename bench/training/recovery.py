"""What a kill costs: `python -m bench.training.recovery`.

    python -m bench.training.recovery                            # all, about 25 minutes
    python -m bench.training.recovery --kind worker --workers 2  # one part of it
    python -m bench.training.recovery --only ours --kills 3      # ours alone

`kill -9` of a worker, of the agent, of the coordinator. Ours is `holdfast run`. torchrun's agent is
one of two torchruns with half of the workers each; its coordinator is the one that holds their
meeting point. torchft's agent is the torchrun of a replica group, its coordinator the lighthouse.
What was killed of those is started again at once, with the same command. All clocks come from what
workers note at every step.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
from pathlib import Path
from typing import Any, Final

from bench.coordination.machine import load_average
from bench.training import contestants, trial
from bench.training.trial import Broken, Outcome

RESULTS: Final = Path(__file__).parents[1] / "results"
KINDS: Final = ("worker", "agent", "coordinator")
STALL_S_MAX: Final = 0.3
STALL_RATIO_MAX: Final = 0.1
FULL_S_MAX: Final = 1.0


def field_of(kind: str, only: list[str]) -> list[type[contestants.Contestant]]:
    """Who is measured. torchrun's tuning is of its agents' signs of life: it needs two of them."""
    ours: list[type[contestants.Contestant]] = [contestants.Ours]
    run: list[type[contestants.Contestant]] = [contestants.Torchrun]
    if kind != "worker":
        run = [contestants.TorchrunTwo, contestants.TorchrunTwoTuned]
    ft: list[type[contestants.Contestant]] = [contestants.Torchft, contestants.TorchftTuned]
    if missing := contestants.torchft_missing():
        print(f"without torchft: {missing}")
        ft = []
    named = {"ours": ours, "torchrun": run, "torchft": ft}
    return [one for name, some in named.items() if name in only for one in some]


def measure(
    kind: str,
    contestant: type[contestants.Contestant],
    folder: Path,
    given: argparse.Namespace,
    workers: int,
) -> Outcome:
    workers = max(workers, contestant.workers_min)
    outcome = Outcome(contestant.name, kind, workers)
    name = f"{kind}-{contestant.name}-{workers}".replace(", ", "-").replace(" ", "-")
    chance = random.Random(given.seed)
    running = contestant(folder / name, workers)
    digest = ""
    try:
        trial.began(running, outcome, given.patience)
        for _ in range(given.kills):
            calm(running, given.calm)
            outcome.clocks.append(trial.strike(running, kind, chance, given.patience))
        digest = trial.end(running, outcome, given.patience)
    except Broken as error:
        outcome.broken = str(error)
    finally:
        running.close()
    if digest.removeprefix("sha256:-") and given.digests:
        outcome.same = digest == trial.undisturbed(running, outcome, given.patience)
    return outcome


def calm(running: contestants.Contestant, seconds: float) -> None:
    """Some time in which nothing happens."""
    end = running.notes.done[-1].at_s + seconds
    trial.await_(running, "going on", lambda notes: notes.done[-1].at_s > end, 30 + 2 * seconds)


def spread(values: list[float], unit: str = "s") -> str:
    """The median and the worst."""
    if not values:
        return "-"
    return f"{statistics.median(values):.2f} / {max(values):.2f} {unit}"


def row(outcome: Outcome) -> list[str]:
    seen = outcome.clocks
    noticed = [one.noticed_s for one in seen if one.noticed_s is not None]
    full = [one.full_s for one in seen if one.full_s is not None]
    same = {None: "-", True: "same", False: "OTHER"}[outcome.same]
    return [
        outcome.kind,
        str(outcome.workers),
        outcome.name,
        "-" if outcome.first_s is None else f"{outcome.first_s:.1f} s",
        str(len(seen)),
        spread([1000 * each for each in noticed], "ms").replace(".00", ""),
        spread([one.stall_s for one in seen]),
        spread(full),
        str(outcome.lost) if seen else "-",
        same,
    ]


HEAD: Final = (
    "killed",
    "workers",
    "who",
    "first step",
    "kills",
    "noticed",
    "stall",
    "full size",
    "steps lost",
    "weights",
)


def show(outcomes: list[Outcome]) -> None:
    rows = [list(HEAD), *(row(one) for one in outcomes)]
    widths = [max(len(each[column]) for each in rows) for column in range(len(HEAD))]
    for each in rows:
        print("  ".join(text.ljust(width) for text, width in zip(each, widths, strict=True)))
    for one in outcomes:
        if one.broken:
            print(f"{one.name}, {one.kind} killed, {one.workers} workers: {one.broken}")


def verdicts(outcomes: list[Outcome]) -> list[str]:
    """Our goals, each with what was reached."""
    found = []

    def stall(outcome: Outcome) -> float:
        return statistics.median(one.stall_s for one in outcome.clocks)

    for one in outcomes:
        if one.name != "ours" or not one.clocks:
            continue
        where = f"{one.kind} killed, {one.workers} workers"
        found.append(_verdict(f"{where}: stall, s", stall(one), STALL_S_MAX))
        found.append(_verdict(f"{where}: steps lost", one.lost, 0))
        full = [each.full_s for each in one.clocks if each.full_s is not None]
        if full:
            found.append(_verdict(f"{where}: full size, s", statistics.median(full), FULL_S_MAX))
        for peer in outcomes:
            beside = (peer.kind, peer.workers) == (one.kind, one.workers)
            if beside and peer.name.startswith("torchrun"):
                if peer.clocks:
                    ratio = stall(one) / stall(peer)
                    found.append(
                        _verdict(f"{where}: stall / {peer.name}'s", ratio, STALL_RATIO_MAX)
                    )
                if one.first_s and peer.first_s and one.kind == "worker":
                    ratio = one.first_s / peer.first_s
                    found.append(_verdict(f"{where}: first step / {peer.name}'s", ratio, 1.0))
    return found


def _verdict(what: str, value: float, limit: float) -> str:
    return (
        f"{what} {value:.3g} (goal at most {limit:g}): {'reached' if value <= limit else 'MISSED'}"
    )


def main(argv: list[str] | None = None) -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--kind", nargs="+", choices=KINDS, default=list(KINDS))
    options.add_argument("--workers", type=int, nargs="+", default=[2, 4])
    options.add_argument("--only", nargs="+", default=["ours", "torchrun", "torchft"])
    options.add_argument("--kills", type=int, default=5)
    options.add_argument("--calm", type=float, default=3.0, help="seconds before each kill")
    options.add_argument("--patience", type=float, default=90.0, help="seconds until it is broken")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--digests", action=argparse.BooleanOptionalAction, default=True)
    options.add_argument("--json", type=Path)
    given = options.parse_args(argv)
    RESULTS.mkdir(exist_ok=True)
    print(f"seed {given.seed}, load {load_average():.1f}", flush=True)
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="recovery-", dir=RESULTS) as folder:
        for kind in given.kind:
            for workers in given.workers:
                for contestant in field_of(kind, given.only):
                    one = measure(kind, contestant, Path(folder), given, workers)
                    outcomes.append(one)
                    print("  ".join(row(one)), one.broken, flush=True)
    print()
    show(outcomes)
    for line in verdicts(outcomes):
        print(line)
    if given.json:
        write(given.json, [vars_of(one) for one in outcomes])
    if any(one.same is False and one.name == "ours" for one in outcomes):
        raise SystemExit("ours ended with other weights than an undisturbed run")


def vars_of(outcome: Outcome) -> dict[str, Any]:
    clocks = [{name: getattr(one, name) for name in one.__slots__} for one in outcome.clocks]
    return {**vars(outcome), "clocks": clocks}


def write(path: Path, rows: Any) -> None:
    path.write_text(json.dumps({"load": load_average(), "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""`python -m simulation.scale`: what breaks first, at which size; `--plots DIR` draws it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from simulation.scale import serving, sizes, training
from simulation.scale.charts import MODEL_S, charts
from simulation.scale.costs import MEASURED, Costs
from simulation.scale.loads import ScalingPart, breaks
from simulation.scale.pictures import svg
from simulation.scale.serving import BILLION_A_DAY, PEAK, RequestLoad
from simulation.scale.training import Cluster

WORKERS = 10_000
SIZE_MAX = 10_000_000

_EXAMPLES = """
examples:
  python -m simulation.scale                         the tables of docs/scale.md
  python -m simulation.scale --json                  the same, and every cost with its source
  python -m simulation.scale --plots docs/pictures   its pictures, anew
"""


def tables(costs: Costs) -> dict[str, tuple[int, list[ScalingPart]]]:
    """What is looked at, each with the size that its shares are shown for."""
    peak = round(PEAK * BILLION_A_DAY)
    small, large = RequestLoad(peak), RequestLoad(peak, MODEL_S)
    return {
        "workers, all in one job": (WORKERS, training.parts(costs)),
        "workers, ten in a job": (WORKERS, training.parts(costs, 10)),
        "workers, ten in a job, one on a machine": (WORKERS, training.parts(costs, 10, 1)),
        "requests a second, a model that costs nothing": (peak, serving.parts(costs, small)),
        "requests a second, a model of 10 ms": (peak, serving.parts(costs, large)),
        "services behind a gateway": (100, serving.service_parts(costs)),
    }


def facts(costs: Costs) -> dict[str, float]:
    """Figures that are no limits: what 10,000 workers and a billion predictions a day need."""
    one, tens = Cluster(WORKERS), Cluster(WORKERS, 10)
    peak = PEAK * BILLION_A_DAY
    small, large = RequestLoad(peak), RequestLoad(peak, MODEL_S)
    lives_s = costs.worker_years.value * 365.25 * 86_400
    agents, view_bytes = one.agents, sizes.view_order_bytes(WORKERS)
    return {
        "connections of a mesh of all workers": WORKERS * (WORKERS - 1) / 2,
        "bytes to tell all of them of a view": agents * view_bytes,
        "seconds of a view change, all in one job": training.view_change_s(one, costs),
        "seconds of a view change, ten in a job": training.view_change_s(tens, costs),
        "seconds between two deaths": lives_s / WORKERS,
        "leader's memory for its agents, bytes": agents * costs.agent_bytes.value,
        "plane's memory for their sessions, bytes": agents * costs.session_bytes.value,
        "seconds until a new leader knows its agents": agents * costs.members_first_s.value,
        "replicas at the peak, a model that costs nothing": serving.replicas(small, costs),
        "replicas at the peak, a model of 10 ms": serving.replicas(large, costs),
        "gateways of 4 cores at the peak": serving.gateways(small, costs),
        "prediction log, bytes a day": 1e9 * costs.prediction_bytes.value,
        "prediction log, cores in the mean": BILLION_A_DAY * costs.prediction_s.value,
        "prediction log, seconds kept at the peak": serving.kept_s(small, costs),
    }


def found(costs: Costs) -> dict[str, Any]:
    shown: dict[str, Any] = {"costs": {name: asdict(cost) for name, cost in costs.table()}}
    shown["facts"] = facts(costs)
    for title, (size, parts) in tables(costs).items():
        shown[title] = [
            {
                "part": one.part.name,
                "limit": one.part.limit,
                "breaks_at": one.size,
                f"share_at_{size}": round(one.part.load(size).share, 4),
            }
            for one in breaks(parts, SIZE_MAX)
        ]
    return shown


def show(costs: Costs) -> None:
    for title, (size, parts) in tables(costs).items():
        print(f"\n{title}")
        print(f"  {'part':44}{'breaks at':>12}{f'at {size:,}':>12}  limit")
        for one in breaks(parts, SIZE_MAX):
            where = "-" if one.size is None else f"{one.size:,}"
            share = f"{one.part.load(size).share:.1%}"
            print(f"  {one.part.name:44}{where:>12}{share:>12}  {one.part.limit}")
    print()
    for name, value in facts(costs).items():
        print(f"  {name:52}{value:>20,.3f}".rstrip("0").rstrip("."))


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m simulation.scale",
        description="What breaks first when a cluster grows, from measured costs.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--plots", type=Path, metavar="DIR", help="write the pictures there")
    parser.add_argument("--seed", type=int, default=6, help="of what is simulated (default 6)")
    parser.add_argument("--json", action="store_true", help="JSON instead of tables")
    options = parser.parse_args(words)
    if options.plots is not None:
        options.plots.mkdir(parents=True, exist_ok=True)
        for name, chart in charts(MEASURED, options.seed).items():
            path = options.plots / f"{name}.svg"
            path.write_text(svg(chart))
            print(f"wrote {path}", file=sys.stderr)
    elif options.json:
        print(json.dumps(found(MEASURED), indent=2))
    else:
        show(MEASURED)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)

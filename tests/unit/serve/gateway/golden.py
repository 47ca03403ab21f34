"""Golden files: what Envoy is given for a state, word by word.

A change of them is a change of what Envoy does: look at it before you keep it.
`python -m tests.unit.serve.gateway.golden` writes them anew.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from holdfast.serve.gateway.resources import resources
from holdfast.serve.gateway.state import GatewayState
from holdfast.serve.records import Limits
from tests.unit.serve.gateway.making import known, plan, seen, state

FOLDER = Path(__file__).parents[3] / "golden" / "gateway"


def states() -> dict[str, GatewayState]:
    """The states, by the name of their file."""
    canary = known(
        plan((1, 9_500), (2, 500), number=7),
        seen(1, (1, 2)),
        seen(2, (1,), draining=True),
        seen(3, (1,), region="us"),
        keys=("ab" * 32,),
        limits=Limits(rate_per_s=2.5, timeout_s=3.0, body_bytes_max=1_000_000),
    )
    keyed = known(plan((1, 10_000)), *map(seen, (1, 2, 3)), route_by="x-customer")
    return {
        "nothing_is_served": state(),
        "a_service_whose_replicas_are_chosen_by_a_key": state(keyed),
        "a_canary_with_keys_and_a_rate_and_no_plane": state(canary, stale_s=12),
    }


def content(one: GatewayState) -> dict[str, Any]:
    """The files; of resources that are alike, one."""
    files = resources(one)
    kept = {name: files[name]["resources"] for name in sorted(files) if _shown(name)}
    kept["cds/clusters.json"] = kept["cds/clusters.json"][:3:2]
    (config,) = kept["rds/routes.json"]
    (host,) = config["virtual_hosts"]
    host["routes"] = [route for route in host["routes"] if _is_shown(route)]
    return kept


def _shown(name: str) -> bool:
    return not name.startswith("lds/")


def _is_shown(route: dict[str, Any]) -> bool:
    """One way to the service, a version that the path names, and what the gateway says itself."""
    path = route["match"].get("path_separated_prefix", "")
    if path in ("/v2/models/digits", "/v2/models/digits/versions/2"):
        return "headers" not in route["match"]
    return "direct_response" in route and "grpc" not in str(route["match"]).lower()


def spelled(one: GatewayState) -> str:
    return json.dumps(content(one), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, each in states().items():
        (FOLDER / f"{name}.json").write_text(spelled(each))

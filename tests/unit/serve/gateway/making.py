"""Values for these tests, short to write; and strategies that draw them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from holdfast.serve.gateway.state import Front, GatewayState, KnownReplica, KnownService
from holdfast.serve.records import (
    WEIGHT_TOTAL,
    Load,
    Loaded,
    Replica,
    RolloutPlan,
    RolloutStage,
    ServiceSpec,
    Variant,
)

FRONT = Front("127.0.0.1", 8080, "eu", ("us", "asia"), release="0.1.0")
VARIANT_NAMES = ("stable", "canary", "third")


def replica(
    worker: int,
    ready: Sequence[int] = (1,),
    *,
    region: str = "eu",
    draining: bool = False,
    loading: Sequence[int] = (),
    **more: Any,
) -> Replica:
    versions = {one: Loaded(Load.READY) for one in ready}
    versions |= {one: Loaded(Load.LOADING) for one in loading}
    return Replica(
        "digits",
        worker,
        more.pop("host", "10.0.0.1"),
        9000 + worker,
        9500 + worker,
        region=region,
        versions=versions,
        draining=draining,
        **more,
    )


def seen(*args: Any, lost_s: float | None = None, **more: Any) -> KnownReplica:
    return KnownReplica(replica(*args, **more), lost_s)


def plan(*variants: tuple[int, int], number: int = 1, hold: tuple[int, ...] = ()) -> RolloutPlan:
    return RolloutPlan(
        number,
        RolloutStage.STEADY,
        hold or tuple(version for version, _ in variants),
        tuple(Variant(VARIANT_NAMES[place], *variant) for place, variant in enumerate(variants)),
        stable=variants[0][0] if variants else None,
    )


def known(decided: RolloutPlan | None, *replicas: KnownReplica, **more: Any) -> KnownService:
    name = more.pop("name", "digits")
    service = ServiceSpec(name, more.pop("model", "mnist"), "prod", **more)
    return KnownService(service, decided, tuple(replicas))


def state(*services: KnownService, **more: Any) -> GatewayState:
    return GatewayState(more.pop("front", FRONT), tuple(services), **more)


VERSIONS = st.integers(1, 3)
REPLICAS = st.lists(
    st.builds(
        seen,
        st.integers(0, 30),
        st.lists(VERSIONS, unique=True),
        region=st.sampled_from(["", "eu", "us", "asia", "moon"]),
        draining=st.booleans(),
        lost_s=st.none() | st.just(5.0),
    ),
    max_size=6,
    unique_by=lambda one: one.replica.worker,
)


@st.composite
def plans(draw: st.DrawFn) -> RolloutPlan:
    """One to three variants, whose weights sum up as the controller's do."""
    versions = draw(st.lists(VERSIONS, min_size=1, max_size=3, unique=True))
    cuts = sorted(
        draw(
            st.lists(
                st.integers(0, WEIGHT_TOTAL),
                min_size=len(versions) - 1,
                max_size=len(versions) - 1,
            )
        )
    )
    edges = [0, *cuts, WEIGHT_TOTAL]
    weights = [after - before for before, after in itertools.pairwise(edges)]
    return plan(*zip(versions, weights, strict=True), hold=(1, 2, 3))


SERVICES = st.builds(lambda decided, there: known(decided, *there), plans(), REPLICAS)

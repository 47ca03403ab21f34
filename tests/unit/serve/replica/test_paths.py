"""Where paths lead."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.serve.replica.paths import Place, Route, route_of


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/v2", Route(Place.SERVER)),
        ("/v2/", Route(Place.SERVER)),
        ("/v2/health/live", Route(Place.LIVE)),
        ("/v2/health/ready", Route(Place.READY)),
        ("/v2/models/m", Route(Place.MODEL, "m")),
        ("/v2/models/m/ready", Route(Place.MODEL_READY, "m")),
        ("/v2/models/m/infer", Route(Place.INFER, "m", None, "POST")),
        ("/v2/models/m/versions/3", Route(Place.MODEL, "m", "3")),
        ("/v2/models/m/versions/3/ready", Route(Place.MODEL_READY, "m", "3")),
        ("/v2/models/m/versions/3/infer", Route(Place.INFER, "m", "3", "POST")),
        ("/v2/models/a%2Fb/infer", Route(Place.INFER, "a/b", None, "POST")),
        ("/predict/m", Route(Place.PREDICT, "m", None, "POST")),
        ("/predict/m/versions/3", Route(Place.PREDICT, "m", "3", "POST")),
        ("/v2/models/m/config", Route(Place.CONFIG, "m")),
        ("/v2/models/m/versions/3/stats", Route(Place.STATISTICS, "m", "3")),
        ("/v2/models/stats", Route(Place.STATISTICS)),
        ("/v2/repository/index", Route(Place.INDEX, method="POST")),
        ("/v2/repository/models/m/load", Route(Place.LOAD, "m", method="POST")),
        ("/v2/repository/models/m/unload", Route(Place.UNLOAD, "m", method="POST")),
        ("/v1/models", Route(Place.V1_MODELS)),
        ("/v1/models/m", Route(Place.V1_MODEL, "m")),
        ("/v1/models/m:predict", Route(Place.V1_PREDICT, "m", method="POST")),
        ("/holdfast/stats", Route(Place.STATS)),
        ("/metrics", Route(Place.METRICS)),
        ("/openapi.json", Route(Place.OPENAPI)),
    ],
)
def test_every_part_of_the_surface_has_its_path(path: str, route: Route) -> None:
    assert route_of(path) == route


@pytest.mark.parametrize(
    "path",
    [
        *("/", "", "/v1", "/v2/models", "/v2/models/", "/v2/models/m/other", "/predict"),
        *("/v2/models/m/versions", "/v2/models/m/versions/3/infer/x", "/v2/models//infer"),
        "/predict/m/x",
    ],
)
def test_other_paths_lead_nowhere(path: str) -> None:
    assert route_of(path) is None


@given(st.text())
def test_no_path_is_an_error(path: str) -> None:
    route_of(path)
    route_of(f"/v2/models/{path}/infer")

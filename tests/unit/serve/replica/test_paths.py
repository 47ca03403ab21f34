"""Where paths lead."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.serve.replica.requests import Endpoint, Route, route_of


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/v2", Route(Endpoint.SERVER)),
        ("/v2/", Route(Endpoint.SERVER)),
        ("/v2/health/live", Route(Endpoint.LIVE)),
        ("/v2/health/ready", Route(Endpoint.READY)),
        ("/v2/models/m", Route(Endpoint.MODEL, "m")),
        ("/v2/models/m/ready", Route(Endpoint.MODEL_READY, "m")),
        ("/v2/models/m/infer", Route(Endpoint.INFER, "m", None, "POST")),
        ("/v2/models/m/versions/3", Route(Endpoint.MODEL, "m", "3")),
        ("/v2/models/m/versions/3/ready", Route(Endpoint.MODEL_READY, "m", "3")),
        ("/v2/models/m/versions/3/infer", Route(Endpoint.INFER, "m", "3", "POST")),
        ("/v2/models/a%2Fb/infer", Route(Endpoint.INFER, "a/b", None, "POST")),
        ("/predict/m", Route(Endpoint.PREDICT, "m", None, "POST")),
        ("/predict/m/versions/3", Route(Endpoint.PREDICT, "m", "3", "POST")),
        ("/v2/models/m/config", Route(Endpoint.CONFIG, "m")),
        ("/v2/models/m/versions/3/stats", Route(Endpoint.STATISTICS, "m", "3")),
        ("/v2/models/stats", Route(Endpoint.STATISTICS)),
        ("/v2/repository/index", Route(Endpoint.INDEX, method="POST")),
        ("/v2/repository/models/m/load", Route(Endpoint.LOAD, "m", method="POST")),
        ("/v2/repository/models/m/unload", Route(Endpoint.UNLOAD, "m", method="POST")),
        ("/v1/models", Route(Endpoint.V1_MODELS)),
        ("/v1/models/m", Route(Endpoint.V1_MODEL, "m")),
        ("/v1/models/m:predict", Route(Endpoint.V1_PREDICT, "m", method="POST")),
        ("/holdfast/stats", Route(Endpoint.STATS)),
        ("/metrics", Route(Endpoint.METRICS)),
        ("/openapi.json", Route(Endpoint.OPENAPI)),
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

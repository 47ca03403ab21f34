"""Which part of the REST surface a path names. Pure."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple
from urllib.parse import unquote


class Place(Enum):
    """A part of the surface."""

    SERVER = "server"
    LIVE = "live"
    READY = "ready"
    MODEL = "model"
    MODEL_READY = "model ready"
    INFER = "infer"
    PREDICT = "predict"
    CONFIG = "configuration"
    STATISTICS = "statistics"
    INDEX = "repository index"
    LOAD = "load"
    UNLOAD = "unload"
    V1_MODELS = "v1 models"
    V1_MODEL = "v1 model"
    V1_PREDICT = "v1 predict"
    STATS = "stats"
    METRICS = "metrics"
    OPENAPI = "openapi"


class Route(NamedTuple):
    """Where a path leads, and the one method that it takes there. `version`: as it stands in the
    path, None if it names none."""

    place: Place
    model: str = ""
    version: str | None = None
    method: str = "GET"


_FIXED = {
    "v1/models": Place.V1_MODELS,
    "v2/models/stats": Place.STATISTICS,
    "v2": Place.SERVER,
    "v2/health/live": Place.LIVE,
    "v2/health/ready": Place.READY,
    "holdfast/stats": Place.STATS,
    "metrics": Place.METRICS,
    "openapi.json": Place.OPENAPI,
}
_OF_MODEL = {
    "": Place.MODEL,
    "ready": Place.MODEL_READY,
    "infer": Place.INFER,
    "config": Place.CONFIG,
    "stats": Place.STATISTICS,
}
_OF_REPOSITORY = {"load": Place.LOAD, "unload": Place.UNLOAD}
_PREDICT = ":predict"


def path_of(target: bytes) -> str:
    """The path of a request's target, without the query; still quoted."""
    text = target.decode("latin-1").partition("?")[0].partition("#")[0]
    if text.startswith("/"):
        return text
    return "/" + text.partition("://")[2].partition("/")[2]  # a client that takes us for a proxy


def route_of(path: str) -> Route | None:
    """Where it leads; None: nowhere."""
    fixed = _FIXED.get(path.strip("/"))
    if fixed is not None:
        return Route(fixed)
    match [unquote(part) for part in path.strip("/").split("/")]:
        case ["predict", str(model)] if model:
            return Route(Place.PREDICT, model, method="POST")
        case ["predict", str(model), "versions", str(version)] if model and version:
            return Route(Place.PREDICT, model, version, "POST")
        case ["v2", "repository", "index"]:
            return Route(Place.INDEX, method="POST")
        case ["v2", "repository", "models", str(model), ("load" | "unload") as what] if model:
            return Route(_OF_REPOSITORY[what], model, method="POST")
        case ["v1", "models", str(model)] if model:
            return _of_v1(model)
        case ["v2", "models", str(model), "versions", str(version), *rest] if model and version:
            return _of_model(model, version, rest)
        case ["v2", "models", str(model), *rest] if model:
            return _of_model(model, None, rest)
    return None


def _of_v1(last: str) -> Route:
    """What is to be done stands behind a colon."""
    model = last.removesuffix(_PREDICT)
    if model == last or not model:
        return Route(Place.V1_MODEL, last)
    return Route(Place.V1_PREDICT, model, method="POST")


def _of_model(model: str, version: str | None, rest: list[str]) -> Route | None:
    place = _OF_MODEL.get("/".join(rest))
    if place is None:
        return None
    return Route(place, model, version, "POST" if place is Place.INFER else "GET")

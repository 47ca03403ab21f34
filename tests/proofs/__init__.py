"""Proofs: long, seeded runs against real servers. Each has a short version in `make test`."""

from __future__ import annotations

import os
import secrets


def seed_of(number: int) -> int:
    """The seed of a short proof: the same in every run, so that a change is judged by itself; with
    HOLDFAST_EXPLORE=1 another one each time."""
    return secrets.randbits(32) if os.environ.get("HOLDFAST_EXPLORE") else number

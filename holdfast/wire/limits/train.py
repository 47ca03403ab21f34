"""Bounds of training: meetings, exchanges, checkpoints of a worker's state."""

from __future__ import annotations

"""Hides torch: as on a machine that does not have it."""

import sys

sys.modules["torch"] = None  # type: ignore[assignment]

"""An answer over HTTP, as tests see it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple


class HttpAnswer(NamedTuple):
    """An answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

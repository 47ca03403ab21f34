"""How large records and messages get: the product's own code writes them. Pure."""

from __future__ import annotations

from functools import cache

from holdfast.control.decide.views import assign
from holdfast.control.store import codec
from holdfast.storage import manifests
from holdfast.storage.keys import content_key, digest_of
from holdfast.storage.manifests import Manifest
from holdfast.storage.parts import PARTS
from holdfast.wire.orders import GiveView, View
from holdfast.wire.reports import Part
from holdfast.wire.values import order_bytes


def view_of(members: int) -> View:
    """A view as a job has it that has lost as many workers as it has now."""
    numbers = range(members, 2 * members)
    addresses = {n: f"10.{n >> 16 & 255}.{n >> 8 & 255}.{n & 255}:20{n % 1000:03}" for n in numbers}
    return View(17, assign(members, numbers, {}), None, "", addresses)


def view_record_bytes(members: int) -> int:
    """The view's node in the coordination plane."""
    return len(codec.view_to(view_of(members)))


def view_order_bytes(members: int) -> int:
    """What each member is sent when there is a new view."""
    return len(order_bytes(GiveView("node", "job", 1, view_of(members))))


def manifest_bytes(parts: int) -> int:
    """The manifest of a checkpoint whose shares have one part each."""
    digest = digest_of(b"a part")
    part = Part(content_key(PARTS, digest), 64 << 20, digest)
    return len(manifests.to_bytes(Manifest("job", 1, 1, dict.fromkeys(range(parts), (part,)))))


@cache
def _view_slope() -> tuple[int, float]:
    """Bytes of the record of 10,000 members, and what each further one adds."""
    some, more = view_record_bytes(10_000), view_record_bytes(20_000)
    return some, (more - some) / 10_000


def view_bytes_about(members: int) -> float:
    """`view_record_bytes`, quick: exact up to rounding for 10,000 and 20,000, a line elsewhere."""
    some, each = _view_slope()
    return max(0.0, some + (members - 10_000) * each)

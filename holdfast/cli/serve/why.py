"""`holdfast why SERVICE`: what was asked, what the conductor decided, and how it is now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from holdfast.cli import absence, listing, output
from holdfast.cli import why as telling
from holdfast.client import texts
from holdfast.client.sight import Sight, arms_of
from holdfast.wire.errors import Missing

if TYPE_CHECKING:
    from holdfast.cli.opening import Opened
    from holdfast.client import Client


def is_service(found: Opened, name: str) -> bool:
    """Whether a service has this name, and no job has."""
    try:
        found.plane.job(name)
    except Missing:
        return name in found.services().services()
    return False


def why(client: Client, name: str, count: int, *, follow: bool, as_json: bool) -> None:
    service = client.service(name)
    entries = service.history()
    if as_json:
        from holdfast.cli.serve.services import document

        told = [
            {"at_s": each.at_s, "term": each.term, "what": each.what, "reason": each.reason}
            for each in entries[-count:]
        ]
        now = document(service.sight())
        output.show_json({"service": name, "history": told, "now": now})
        return
    telling.show_last(telling.told(entries, every=True), count, name)
    if follow:
        telling.followed(name, entries, service.history, lambda: False)
        entries = service.history()
    _now(service.sight(), entries[-1].reason if entries else "")
    absence.warn(absence.warnings(client.found, services=True))


def _now(sight: Sight, told: str) -> None:
    """How it is now. `told`: the end of its story, which is not said again."""
    course = sight.course
    stage = course.stage.value if course else "nothing is decided yet"
    since = f" since {texts.clock(course.since_s)} ({texts.ago(course.since_s)})" if course else ""
    console = output.out()
    console.print(Text("now       ", style="bold").append(f"{stage}{since}"))
    rows = [f"requests go to version {arms_of(course)}"] if course and course.arms else []
    progress = sight.progress()
    rows.append(progress.removesuffix(f"; {listing.one_line(told)}") if told else progress)
    rows.append(sight.outlook())
    rows.append(f"replicas: serve.{sight.name} is {sight.doing}")
    if why_not := sight.failed():
        rows.append(f"version {sight.wanted} was taken back: {why_not}")
    for row in rows:
        listing.say(console, listing.own_paths(row), indent=10)
    hints = [f"holdfast why serve.{sight.name}", f"holdfast logs serve.{sight.name}"]
    if sight.failed():
        hints.append(f"holdfast rollout {sight.name} (to try again)")
    listing.note(f"next: {'   '.join(hints)}")

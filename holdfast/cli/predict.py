"""`holdfast predict`: one request, as a person writes it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from holdfast.cli import completing, listing, serving
from holdfast.cli.opening import ClusterOption, opened
from holdfast.wire.errors import TerminalError, Unavailable

if TYPE_CHECKING:
    from holdfast.cli.serving import Sight

EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast predict digits '{"x": [[0.1, 0.2]]}'[/]

  [cyan]holdfast predict digits @request.json --user anna[/]

  [cyan]cat request.json | holdfast predict digits - --key hf_…[/]
"""
# A person who waits longer has a slow model, and curl.
_TIMEOUT_S: Final = 60.0
_OK: Final = 200


def predict(
    name: Annotated[
        str,
        typer.Argument(
            metavar="SERVICE", help="The service's name.", autocompletion=completing.services
        ),
    ],
    body: Annotated[
        str, typer.Argument(metavar="JSON|@FILE|-", help="Inputs by name, or the only one's list.")
    ],
    version: Annotated[int | None, typer.Option(min=1, help="Exactly this one.")] = None,
    user: Annotated[str | None, typer.Option(help="Who asks: an arm keeps its users.")] = None,
    key: Annotated[str | None, typer.Option(help="The API key, if it asks for one.")] = None,
    cluster: ClusterOption = None,
) -> None:
    """Ask a service through its gateway, and print the answer; which version and replica, too."""
    text = sys.stdin.read() if body == "-" else body
    if body.startswith("@"):
        text = Path(body[1:]).read_text()
    with opened(cluster) as found:
        serving.service_in(found, name)
        sight = serving.look(found, name)
    headers = {"content-type": "application/json"}
    if user is not None:
        headers[sight.service.sticky_header] = user
    if key is not None:
        headers["x-api-key"] = key
    which = f"/versions/{version}" if version is not None else ""
    _ask(sight, f"/predict/{name}{which}", text.encode(), headers)


def _ask(sight: Sight, path: str, body: bytes, headers: dict[str, str]) -> None:
    import http.client

    if not sight.gateways:
        raise Unavailable("the cluster has no gateway", fix=f"holdfast serve {sight.service.model}")
    gateway = next(iter(sight.gateways.values()))
    connection = serving.connection_to(gateway.address, _TIMEOUT_S)
    try:
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        said = answer.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(
            f"the gateway at {gateway.address} does not answer",
            why=str(error),
            fix="holdfast status",
        ) from error
    finally:
        connection.close()
    if answer.status != _OK:
        raise refusal(sight.name, answer.status, said)
    sys.stdout.write(said.rstrip("\n") + "\n")
    marks = {word: answer.getheader(f"x-holdfast-{word}") for word in ("version", "arm", "replica")}
    listing.note(", ".join(f"{word} {mark}" for word, mark in marks.items() if mark))


def refusal(name: str, status: int, said: str) -> TerminalError:
    """A service's error as one of ours: what was wrong, why, and its own hint, where it gives one.
    `{"error": "what\\nwhy: ...\\nfix: ..."}` is how a replica says it."""
    try:
        words = json.loads(said)["error"]
        first, *others = str(words).strip().splitlines() or [""]
    except (ValueError, KeyError, TypeError):
        first, others = said.strip(), []
    parts = {"why": [first] if first else [], "fix": [f"holdfast why {name}"]}
    into = "why"
    for line in others:
        label, colon, rest = line.partition(": ")
        if colon and label == "fix":
            into, parts["fix"] = "fix", [rest]
        else:
            parts[into].append(rest if colon and label == "why" else line)
    return TerminalError(
        f"{name} answered {status}", why="\n".join(parts["why"]), fix="\n".join(parts["fix"])
    )

"""`holdfast predict`: one request, as a person writes it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import completing, listing
from holdfast.cli.opening import ClusterOption, client_of

EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast predict digits '{"x": [[0.1, 0.2]]}'[/]

  [cyan]holdfast predict digits @request.json --user anna[/]

  [cyan]cat request.json | holdfast predict digits - --key hf_…[/]
"""


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
    with client_of(cluster) as client:
        answer = client.service(name).answer(text, version=version, user=user, key=key)
    sys.stdout.write(answer.text.rstrip("\n") + "\n")
    marks = (("version", answer.version), ("arm", answer.arm), ("replica", answer.replica))
    listing.note(", ".join(f"{word} {mark}" for word, mark in marks if mark not in (None, "")))

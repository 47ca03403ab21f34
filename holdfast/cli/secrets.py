"""`holdfast secrets` and `holdfast secret`: values that jobs name, and nobody is shown. A value is
read from where other users of a machine do not see it: not from a command line."""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import output
from holdfast.cli.options import ClusterOption, JsonOption, opened
from holdfast.client import texts
from holdfast.wire.errors import Usage

EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast secret set hub-token[/]                       it asks for the value

  [cyan]holdfast secret set hub-token --file token.txt[/]      from a file

  [cyan]pass show hub | holdfast secret set hub-token -[/]     from stdin

  [cyan]holdfast secret remove hub-token[/]


A job gets it as an environment variable by a line of its file: secrets: {API_TOKEN: hub-token}
"""

app = typer.Typer(
    help="Keep values that jobs need and nobody is shown.",
    epilog=EXAMPLES,
    no_args_is_help=True,
    rich_markup_mode="rich",
)
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The secret's name.")]


def secrets(cluster: ClusterOption = None, as_json: JsonOption = False) -> None:
    """List the secrets: their names, and the jobs that name them. Values are never shown."""
    from holdfast.control.store.secret_store import SecretStore

    with opened(cluster) as found:
        names = SecretStore(found.session).names()
        jobs = found.plane.jobs().values()
    users = {
        name: sorted(job.name for job in jobs if name in job.spec.secrets.values())
        for name in names
    }
    if as_json:
        output.show_json({"secrets": [{"name": name, "jobs": users[name]} for name in names]})
        return
    rows = [(name, ", ".join(users[name]) or "-") for name in names]
    output.show_table(["secret", "jobs"], rows)


@app.command("set", epilog=EXAMPLES)
def set_(
    name: NameArgument,
    source: Annotated[
        str | None, typer.Argument(metavar="[-]", help="- reads the value from stdin.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", help="A file with the value.", exists=True)
    ] = None,
    cluster: ClusterOption = None,
) -> None:
    """Keep a value under this name, or another than before. One line break at its end is not part
    of it."""
    from holdfast.control.store.secret_store import SecretStore

    value = _value(name, source, file)
    with opened(cluster) as found:
        SecretStore(found.session).put(name, value)
    output.out().print(f"secret {name} is kept", markup=False)
    line = f"secrets: {{VARIABLE: {name}}}"
    output.note(f"next: a job gets it by the line `{line}` in its file; holdfast secrets")


@app.command("remove", epilog=EXAMPLES)
def remove(name: NameArgument, cluster: ClusterOption = None) -> None:
    """Forget a secret. Workers that have it go on; new ones of jobs that name it wait."""
    from holdfast.control.store.secret_store import SecretStore

    with opened(cluster) as found:
        SecretStore(found.session).remove(name)
        jobs = [
            job.name
            for job in found.plane.jobs().values()
            if name in job.spec.secrets.values() and not job.status.phase.final
        ]
    output.out().print(f"secret {name} is removed", markup=False)
    if jobs:
        output.note(f"{texts.many(len(jobs), 'job')} cannot start new workers: {', '.join(jobs)}")


def _value(name: str, source: str | None, file: Path | None) -> str:
    if source not in (None, "-"):
        raise Usage(
            "a secret is not given on a command line",
            why="every user of this machine can list those, and shells keep them",
            fix=f"holdfast secret set {name}, which asks for it",
        )
    if file is not None:
        text = file.read_text()
    elif source == "-":
        text = sys.stdin.read()
    elif sys.stdin.isatty():
        text = getpass.getpass(f"{name}: ")
    else:
        raise Usage(
            "nobody is here to be asked for the value",
            fix=f"holdfast secret set {name} --file FILE, or - for stdin",
        )
    return text.removesuffix("\n").removesuffix("\r")

"""`holdfast`: the root of the command line, and the one place where an error meets a person."""

from __future__ import annotations

import sys
import traceback
from _thread import interrupt_main
from collections.abc import Callable, Sequence
from typing import Annotated, Final, NoReturn

import typer

from holdfast import __version__
from holdfast.cli import bundle, coord, output, queues, secrets, sharing, subscribe
from holdfast.cli.cluster import commands as cluster
from holdfast.cli.cluster import nodes
from holdfast.cli.jobs import actions, checkpoints, listing, logs, submit, why
from holdfast.cli.models import commands as models
from holdfast.cli.run import command as running
from holdfast.cli.serve import command as serve
from holdfast.cli.serve import services
from holdfast.cli.topics import commands as topics
from holdfast.system import tasks
from holdfast.wire.errors import BugError, HoldfastError, TerminalError, Usage

EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast doctor[/]                       is this machine ready?

  [cyan]holdfast run train.py --workers 4[/]     train, here and now

  [cyan]holdfast up[/]                           a cluster on this machine

  [cyan]holdfast submit job.yaml[/]              a job for it; then: jobs, why, logs, set, scale

  [cyan]holdfast topics create clicks[/]         a topic; then: produce, tail, groups

  [cyan]holdfast coord serve --data ./coord[/]   a coordination server here

  [cyan]holdfast coord status[/]                 how is it?

  [cyan]holdfast coord tree /holdfast[/]         what does it hold?


[bold]Exit codes[/]

  0 done · 1 it will not work until something changes · 2 wrong usage

  11 somebody else has that folder or address · 75 try again later

  70 a bug in Holdfast · 130 interrupted (Ctrl-C)
"""

EXIT_PIPE_CLOSED = 1

app = typer.Typer(
    name="holdfast",
    help="Trains PyTorch models on machines that fail, and serves them without dropping a request.",
    epilog=EXAMPLES,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_Command = tuple[Callable[..., None], str, str]  # the function, its name, its examples

_JOBS: Final[Sequence[_Command]] = (
    (submit.submit, "submit", submit.EXAMPLES),
    (submit.update, "update", submit.UPDATE_EXAMPLES),
    (subscribe.subscribe, "subscribe", subscribe.EXAMPLES),
    (listing.jobs, "jobs", listing.JOBS_EXAMPLES),
    (why.why, "why", why.EXAMPLES),
    (logs.logs, "logs", logs.EXAMPLES),
    (actions.scale, "scale", actions.SCALE_EXAMPLES),
    (actions.set_, "set", actions.SET_EXAMPLES),
    (actions.checkpoint, "checkpoint", actions.CHECKPOINT_EXAMPLES),
    (checkpoints.checkpoints, "checkpoints", checkpoints.EXAMPLES),
    (actions.pause, "pause", actions.PAUSE_EXAMPLES),
    (actions.resume, "resume", actions.RESUME_EXAMPLES),
    (actions.stop, "stop", actions.STOP_EXAMPLES),
    (actions.remove, "remove", actions.STOP_EXAMPLES),
)
_SERVING: Final[Sequence[_Command]] = (
    (serve.serve, "serve", serve.EXAMPLES),
    (services.services, "services", services.SERVICES_EXAMPLES),
    (services.rollout, "rollout", services.ROLLOUT_EXAMPLES),
    (services.rollback, "rollback", services.ROLLBACK_EXAMPLES),
    (services.split, "split", services.SPLIT_EXAMPLES),
    (services.predict, "predict", services.PREDICT_EXAMPLES),
    (services.unserve, "unserve", services.UNSERVE_EXAMPLES),
)
_MACHINES: Final[Sequence[_Command]] = (
    (nodes.nodes, "nodes", nodes.NODES_EXAMPLES),
    (nodes.drain, "drain", nodes.DRAIN_EXAMPLES),
    (nodes.undrain, "undrain", nodes.DRAIN_EXAMPLES),
    (queues.queues, "queues", queues.QUEUES_EXAMPLES),
    (secrets.secrets, "secrets", secrets.EXAMPLES),
    (sharing.locks, "locks", sharing.LOCKS_EXAMPLES),
)
_GROUPS: Final = ((queues.app, "queue"), (secrets.app, "secret"), (sharing.app, "config"))


def _register() -> None:
    for panel, listed, groups in (
        ("Jobs", _JOBS, ((bundle.app, "bundle"),)),
        ("Serving", _SERVING, ((services.keys, "key"),)),
        ("Machines and queues", _MACHINES, _GROUPS),
    ):
        for command, name, examples in listed:
            app.command(name, epilog=examples, rich_help_panel=panel)(command)
        for group, name in groups:
            app.add_typer(group, name=name, rich_help_panel=panel)
    # Another way to say `jobs JOB`.
    app.command("job", epilog=listing.JOBS_EXAMPLES, hidden=True)(listing.job)


cluster.register(app)
_register()
app.add_typer(models.app, name="models", rich_help_panel="Models and services")
app.add_typer(coord.app, name="coord")
app.add_typer(topics.app, name="topics")
app.command(
    epilog=running.EXAMPLES,
    # What is not an option of ours is the script's.
    context_settings={"ignore_unknown_options": True},
)(running.run)


def _show_version(wanted: bool) -> None:
    if wanted:
        output.out().print(f"holdfast {__version__}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    tell_version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Say which version this is; `holdfast version` says more.",
            callback=_show_version,
            is_eager=True,
        ),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the whole traceback of an error.")
    ] = False,
    log_level: Annotated[
        str | None,
        typer.Option(help="debug, info, warning, error or critical.", envvar="HOLDFAST_LOG_LEVEL"),
    ] = None,
) -> None:
    _ = debug, tell_version  # `run` has taken it out, or it is told; they stand here for `--help`
    from holdfast.system import logs

    context.obj = log_level
    logs.set_up(log_level or "warning")


@app.command()
def version(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Which Holdfast, which Python, where."""
    import platform
    from pathlib import Path

    document = {
        "holdfast": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "location": str(Path(__file__).parent.parent),
    }
    if as_json:
        output.show_json(document)
        return
    output.out().print(output.table([], document.items()))


@app.command()
def doctor(
    address: Annotated[
        str | None,
        typer.Option(
            help="Ask this coordination server instead of a throwaway one.",
            envvar=coord.ADDRESS_VARIABLE,
        ),
    ] = None,
    data: Annotated[
        str, typer.Option(help="The folder where data will be; its disk is measured.")
    ] = ".",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Is this machine ready? PASS, WARN or FAIL, each with the fix, in under three seconds.

    Ends with 0 when nothing failed, with 1 otherwise.
    """
    from pathlib import Path

    from holdfast.cli.doctor import examine, show

    report = examine(Path(data), address)
    show(report, as_json=as_json)
    raise typer.Exit(0 if report.ok else 1)


def run(arguments: Sequence[str] | None = None) -> NoReturn:
    """The command. Every error ends here: a short message, and an exit code with a meaning."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    # Taken out here: it is needed when the words cannot be parsed, and may stand anywhere.
    # What follows `--` is for somebody else (`holdfast run`).
    at = words.index("--") if "--" in words else len(words)
    ours = [word for word in words[:at] if word != "--debug"]
    rest = [*ours, *words[at:]]
    debug, as_json = rest != words, "--json" in ours
    # Whatever a command was about, it ends as if by Ctrl-C when a part of it has died.
    with tasks.main_ended_by(interrupt_main):
        code, death = _run(rest, debug=debug, as_json=as_json), tasks.death()
    sys.exit(code if death is None else _fail(death, debug=debug, as_json=as_json))


def _run(words: list[str], *, debug: bool, as_json: bool) -> int:
    try:
        code = app(words, prog_name="holdfast", standalone_mode=False)
    except typer.Abort:
        return 130
    except typer.TyperException as error:
        return _fail(_usage(error), debug=debug, as_json=as_json)
    except HoldfastError as error:
        return _fail(error, debug=debug, as_json=as_json)
    except BrokenPipeError:
        # The reader has gone (`| head`). Nobody is left to tell.
        sys.stdout = None  # the interpreter's last flush would complain
        return EXIT_PIPE_CLOSED
    except OSError as error:
        return _fail(_of_the_machine(error), debug=debug, as_json=as_json)
    except Exception as error:  # the last line of defence: whatever it is, it is ours
        return _fail(_bug(error), debug=debug, as_json=as_json)
    return code if isinstance(code, int) else 0


def _fail(error: HoldfastError, *, debug: bool, as_json: bool) -> int:
    if debug:
        traceback.print_exception(error)
    output.show_error(error, as_json=as_json)
    return error.exit_code


def _usage(error: typer.TyperException) -> HoldfastError:
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "holdfast"
    message = error.format_message()
    if error.exit_code != Usage.exit_code:
        return TerminalError(message)
    found = Usage(message, fix=f"{command} --help")
    found.__cause__ = error
    return found


def _of_the_machine(error: OSError) -> HoldfastError:
    where = f": {error.filename}" if error.filename else ""
    found = TerminalError(f"the machine refused{where}", why=str(error.strerror or error))
    found.__cause__ = error
    return found


def _bug(error: Exception) -> HoldfastError:
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    found = BugError(
        f"{type(error).__name__}: {error}",
        why="this is a bug in Holdfast, not something that you did",
        fix="run it again with `holdfast --debug …` and report what it prints",
        story=[f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in frames],
    )
    found.__cause__ = error
    return found

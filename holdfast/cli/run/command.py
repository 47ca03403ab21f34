"""`holdfast run`: a script on this machine, with nothing to set up and nothing left behind."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from holdfast.wire.errors import Usage

if TYPE_CHECKING:
    from holdfast.client.scripts import ScriptRun
    from holdfast.launch.local import AgentSize

EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast run train.py[/]                         on the GPUs there are, or the CPU

  [cyan]holdfast run train.py --workers 4 --lanes 8[/]   8 lanes, on four workers

  [cyan]holdfast run train.py --set lr=0.1 --epochs 3[/] --epochs is the script's

  [cyan]holdfast run train.py -- --name x[/]             all after -- is the script's

  [cyan]holdfast run train.py --workers 4 --mode local[/] workers talk once in some steps

  [cyan]holdfast run train.py --gpu 0[/]                 on the CPU, whatever there is

  [cyan]holdfast run train.py --json | jq .[/]           one JSON object a line


Ctrl-C saves a checkpoint and stops within 10 s; the same command goes on from there. The other
commands work from the same project, also when it has ended: [cyan]holdfast why train[/].
Ends with 0 when the job has succeeded, with 1 when it has failed, with 130 after Ctrl-C.
"""


Script = Annotated[Path, typer.Argument(help="A Python script.", metavar="SCRIPT")]
Arguments = Annotated[
    list[str] | None,
    typer.Argument(help="What the script gets: all that is not ours.", metavar="ARGUMENTS"),
]
Workers = Annotated[
    int | None,
    typer.Option(help="How many processes.", show_default="one for each GPU, or one"),
]
Lanes = Annotated[
    int | None,
    typer.Option(
        help="Fixed parts of each step; the result depends on them, and not on the workers."
        " As the script says; else the power of two that gives each worker one.",
        show_default=False,
    ),
]
Name = Annotated[str | None, typer.Option(help="The job's name; the script's, if not said.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting of the job.")
]
Every = Annotated[
    str | None,
    typer.Option(metavar="TIME|STEPS", help="30s, 5m, 100steps or never.", show_default="30s"),
]
Cpu = Annotated[
    float | None,
    typer.Option(help="Cores for each worker. If not said, workers share what there is."),
]
Memory = Annotated[str | None, typer.Option(help="Memory for each worker, such as 4GiB.")]
Disk = Annotated[str | None, typer.Option(help="Disk that each worker may write to, such as 20GB.")]
Gpu = Annotated[
    int | None,
    typer.Option(
        help="GPUs for each worker; 0: the CPU.", show_default="1 where there are any", min=0
    ),
]
GpuShare = Annotated[
    int | None,
    typer.Option(help="So many workers share each GPU.", show_default="1", min=1),
]
Mode = Annotated[
    str | None,
    typer.Option(
        help="How lanes are combined: sync, local or async (docs/modes.md).", show_default="sync"
    ),
]
Folder = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        help="Where checkpoints, logs and the rest go.",
        show_default=".holdfast in the project",
    ),
]
Fresh = Annotated[
    bool, typer.Option("--fresh", help="Start anew; the job of that name is removed.")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]
_VARIABLE: Final = "GRPC_VERBOSITY"


def run(
    context: typer.Context,
    script: Script,
    arguments: Arguments = None,
    workers: Workers = None,
    lanes: Lanes = None,
    name: Name = None,
    settings: Settings = None,
    checkpoint_every: Every = None,
    cpu: Cpu = None,
    memory: Memory = None,
    disk: Disk = None,
    gpu: Gpu = None,
    gpu_share: GpuShare = None,
    mode: Mode = None,
    folder: Folder = None,
    fresh: Fresh = False,
    as_json: AsJson = False,
) -> None:
    """Run a training script on this machine, and show how it goes.

    Starts what it needs, and leaves nothing running. If workers are killed, the others go on.
    """
    from holdfast.agent.devices import gpu_names
    from holdfast.cli.run import plan as run_devices
    from holdfast.cli.run import plan as run_plan
    from holdfast.client import scripts

    path = _script(script)
    scripts.check_counts(workers, lanes)
    source = path.read_bytes().decode(errors="replace")
    own = scripts.lanes_in(source)
    names = () if gpu == 0 else gpu_names()
    lanes_most = lanes or (own.count if own else None)
    devices = run_devices.choose(names, workers=workers, lanes=lanes_most, gpu=gpu, share=gpu_share)
    wanted = scripts.ScriptRun(
        path,
        tuple(arguments or ()),
        scripts.checked_name(name) if name is not None else scripts.name_of(path),
        devices.workers,
        lanes,
        run_plan.settings_from(settings or []),
        None if checkpoint_every is None else scripts.checkpoint_of(checkpoint_every),
        scripts.resources_of(cpu, memory, devices.gpu, disk),
        fresh,
        None if mode is None else scripts.mode_of(mode),
        workers_given=workers is not None,
        script_lanes=own,
    )
    scripts.lanes_of(wanted)  # a wrong number is told before anything is started
    size, shared = _agent_size(wanted, shares=cpu is None)
    size = replace(size, gpu_share=devices.share)
    notes = [devices.note, *([shared] if shared else [])]
    notes += _strange(context, wanted, source)
    raise typer.Exit(_follow(wanted, folder or default_folder(path), size, notes, as_json))


def _follow(
    wanted: ScriptRun, folder: Path, size: AgentSize, notes: list[str], as_json: bool
) -> int:
    import time

    from holdfast.cli import output
    from holdfast.cli.run.processes import RunProcesses

    began_s = time.time()
    with RunProcesses.over(folder, size, output.err().print) as processes:
        # Only now, while the others start: these imports take a while.
        import_grpc()
        from holdfast.cli.run.display import display_for
        from holdfast.cli.run.runner import Runner

        display = display_for(as_json=as_json)
        for note in notes:
            display.note(note)
        return Runner(wanted, display, began_s).run(processes)


def _strange(context: typer.Context, wanted: ScriptRun, source: str) -> list[str]:
    """What is said of options that went to the script and were perhaps meant for us. What follows
    `--` was meant for it."""
    import sys

    from holdfast.client import scripts

    words = sys.argv
    behind = len(words) - words.index("--") - 1 if "--" in words else 0
    loose = wanted.arguments[: max(0, len(wanted.arguments) - behind)]
    ours = {option for each in context.command.params for option in each.opts}
    return [
        f"{option} goes to {wanted.script.name}, which does not name it: {instead}"
        for option, instead in scripts.strange_options(loose, source, ours)
    ]


def default_folder(script: Path) -> Path:
    """`.holdfast` at the top of the script's git checkout, or beside the script."""
    from holdfast.cluster.folder import FOLDER_NAME, project_of

    return project_of(script.parent) / FOLDER_NAME


def _script(script: Path) -> Path:
    path = script.expanduser().absolute()
    if path.is_file():
        return path
    if str(script).startswith("-"):
        raise Usage(
            f"holdfast run has no option {script}",
            why="what stands before the script is for holdfast run",
            fix="options of the script come after it: holdfast run train.py --epochs 3",
        )
    why = "it is a folder" if path.is_dir() else "there is no such file"
    near = sorted(one.name for one in path.parent.glob("*.py")) if path.parent.is_dir() else []
    fix = f"scripts there: {', '.join(near[:5])}" if near else "holdfast run path/to/train.py"
    raise Usage(f"{script} cannot be run", why=why, fix=fix)


def _agent_size(wanted: ScriptRun, *, shares: bool) -> tuple[AgentSize, str]:
    """What the agent may give away, and what to say about it once.

    Workers share the cores unless the user said how many each needs: then they wait for them.
    """
    from holdfast.agent.devices import cpu as cores_here
    from holdfast.launch.local import AgentSize

    cores, each = cores_here(), wanted.resources.cpu
    needed = wanted.workers * each
    if needed <= cores:
        return AgentSize(cpu=float(cores)), ""
    if shares:
        note = f"{wanted.workers} workers share {cores:g} cores: good for trying, not for speed"
        return AgentSize(cpu=needed), note
    fit = int(cores / each)
    note = f"{wanted.workers} workers of {each:g} cores do not fit on {cores:g}: {fit} can run"
    return AgentSize(cpu=float(cores)), note


def import_grpc() -> None:
    """Import it, silenced, unless the user has said how loud it should be."""
    if _VARIABLE in os.environ:
        return
    os.environ[_VARIABLE] = "NONE"
    try:
        import grpc  # noqa: F401
    finally:
        del os.environ[_VARIABLE]

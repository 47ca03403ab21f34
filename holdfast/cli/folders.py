"""`holdfast coord check` and `salvage`: what a data folder holds, shown."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from holdfast.cli import output
from holdfast.coordination.embedded import salvage as disk


def check(folder: Path, *, as_json: bool) -> int:
    """Show the state of every file; the exit code: 1 if something is damaged."""
    report = disk.check(folder)
    code = 0 if report.is_good else 1
    if as_json:
        found = {"good": report.is_good, "last_zxid": report.last_zxid, **asdict(report)}
        output.show_json(found)
        return code
    rows = [
        (
            "BAD" if one.problem else "good",
            one.name,
            one.bytes,
            one.entries,
            f"{one.first_zxid:#x}",
            f"{one.last_zxid:#x}",
            one.problem or one.note,
        )
        for one in report.files
    ]
    columns = ["", "file", "bytes", "entries", "first zxid", "last zxid", ""]
    console = output.out()
    console.print(output.table(columns, rows))
    for problem in report.problems:
        console.print("BAD ", problem, markup=False)
    if report.in_use:
        console.print("[dim]a server is using this folder now[/]")
    if report.is_good:
        console.print(f"[green]all good[/] up to zxid {report.last_zxid:#x}")
    else:
        console.print(
            f"[red]damaged[/]: restore a backup, or: holdfast coord salvage {folder} NEWDIR"
        )
    return code


def salvage(folder: Path, target: Path, *, as_json: bool) -> None:
    """Save what is provably good, and show what is lost."""
    report = disk.salvage(folder, target)
    if as_json:
        output.show_json({"loses": report.loses, **asdict(report)})
        return
    rows = [
        ("kept", f"{report.nodes} nodes, up to zxid {report.kept_zxid:#x}"),
        ("from", f"{report.snapshot or 'no snapshot'} and {report.records} records"),
        ("into", report.target),
    ]
    rows += [("damage", one) for one in report.damage]
    if report.new_secret:
        rows.append(("sessions", "end: the folder's secret was lost, clients get new ones"))
    if report.loses:
        rows.append(("LOST", f"zxid {report.lost_first:#x} to {report.lost_last:#x}"))
    else:
        rows.append(("lost", "nothing"))
    output.out().print(output.table([], rows))
    output.out().print(f"[dim]next:[/] holdfast coord serve --data {report.target}")

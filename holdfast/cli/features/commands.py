"""`holdfast features`: tables declared, looked at and removed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import output
from holdfast.cli.features import rows
from holdfast.cli.features.opening import TableArgument, open_features, open_registry
from holdfast.cli.options import ClusterOption, JsonOption
from holdfast.wire.errors import Usage

if TYPE_CHECKING:
    from holdfast.features.table import Table, TableChange

EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast features apply tables.py[/]        shows the difference, and makes it so

  [cyan]holdfast features describe drivers[/]

  [cyan]holdfast features put drivers '{"driver_id": "d7", "trips": 12}'[/]

  [cyan]holdfast features get drivers d7[/]         value, version, event time, age

  [cyan]holdfast features delete drivers d7[/]


The first table starts a Valkey of the cluster's own; [cyan]holdfast up --features cassandra://…[/]
names a Cassandra that you run, and [cyan]redis://…[/] a Redis or Valkey for eventual tables.
"""
APPLY_EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast features apply tables.py --dry-run[/]    the difference, and nothing else

  [cyan]holdfast features apply tables.py[/]


tables.py is a Python program with tables at its top:

  [dim]from holdfast import features

  drivers = features.Table("drivers", key="driver_id", ttl="7d",
                           columns={"trips": "int64", "rating": "float32"})[/]
"""

app = typer.Typer(
    help="Feature tables: written once, read everywhere, as consistent as each table asks.",
    epilog=EXAMPLES,
    no_args_is_help=True,
    rich_markup_mode="rich",
)
app.command(epilog=rows.GET_EXAMPLES)(rows.get)
app.command(epilog=rows.PUT_EXAMPLES)(rows.put)
app.command(epilog=rows.DELETE_EXAMPLES)(rows.delete)


@app.command(epilog=APPLY_EXAMPLES)
def apply(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A Python file that has tables.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the difference, and change nothing.")
    ] = False,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make the tables of a file. Those that it does not name stay as they are.

    A column may be added, or retired by saying so; what would lose data is refused.
    """
    from holdfast.features.loading import load_tables

    wanted = load_tables(file)
    if dry_run:
        with open_registry(cluster) as registry:
            changes = registry.plan(wanted)
    else:
        with open_features(cluster, wants=True) as features:
            changes = features.apply(wanted)
    if as_json:
        output.show_json(
            {"applied": not dry_run, "tables": [_change_fields(change) for change in changes]}
        )
        return
    for change in changes:
        _show_change(change)
    if all(change.is_empty for change in changes):
        output.done("nothing is to be changed")
    elif dry_run:
        output.note(f"nothing was changed: holdfast features apply {file}")
    else:
        first = changes[0].table.name
        output.done("applied", f"holdfast features describe {first}")


def _show_change(change: TableChange) -> None:
    state = "new" if change.is_new else "unchanged" if change.is_empty else "changed"
    output.out().print(f"[bold]{change.table.name}[/]  [dim]{state}[/]", highlight=False)
    for line in change.lines():
        output.out().print(f"  {line}", markup=False, highlight=False)


def _change_fields(change: TableChange) -> dict[str, Any]:
    from holdfast.features import records

    return {
        "table": change.table.name,
        "state": "new" if change.is_new else "unchanged" if change.is_empty else "changed",
        "added": [column.name for column in change.added],
        "retired": [column.name for column in change.retired],
        "settings": {each.name: [each.before, each.after] for each in change.settings},
        "warnings": list(change.warnings),
        "definition": records.to_document(change.table),
    }


@app.command("list")
def list_(cluster: ClusterOption = None, as_json: JsonOption = False) -> None:
    """Which tables there are."""
    with open_registry(cluster) as registry:
        tables = registry.tables()
    if as_json:
        from holdfast.features import records

        output.show_json({"tables": [records.to_document(table) for table in tables]})
        return
    if not tables:
        output.out().print("there are no feature tables: holdfast features apply tables.py")
        return
    listed = [
        (table.name, ", ".join(table.key), len(table.living), table.consistency, _ttl(table))
        for table in tables
    ]
    output.show_table(["table", "key", "columns", "consistency", "ttl"], listed, right=["columns"])


@app.command()
def describe(
    table: TableArgument, cluster: ClusterOption = None, as_json: JsonOption = False
) -> None:
    """A table's key, settings and columns, and how its store is."""
    with open_features(cluster) as features:
        known = features.registry.table(table)
        status = features.online.status()
        of = features.where
    where = "this cluster's own" if of.embedded else of.address
    if as_json:
        from holdfast.features import records

        store = {
            "engine": status.engine,
            "where": where,
            "nodes": dict(status.nodes),
            "trouble": status.trouble,
        }
        output.show_json({"definition": records.to_document(known), "store": store})
        return
    output.show_facts(
        [
            ("table", known.name),
            ("key", ", ".join(_typed(known))),
            ("time", known.time),
            ("consistency", known.consistency),
            ("ttl", _ttl(known)),
            ("home", known.home or "-"),
            ("copies", known.copies if not of.embedded else "1 (this machine's)"),
            ("schema", known.schema),
            ("store", f"{status.engine}, {where}"),
            *(("node", f"{name}: {state}") for name, state in status.nodes),
            *((("trouble", status.trouble),) if status.trouble else ()),
        ]
    )
    output.show_table(
        ["column", "type", ""],
        [
            (column.name, column.type, f"retired in schema {column.until}" * column.retired)
            for column in known.columns
        ],
    )


@app.command()
def remove(
    table: TableArgument,
    yes: Annotated[
        bool, typer.Option("--yes", help="Its rows are lost online; this says that it is meant.")
    ] = False,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove a table with all its rows."""
    if not yes:
        raise Usage(
            f"table {table} would be removed with all its rows",
            why="nothing brings them back",
            fix=f"holdfast features remove {table} --yes",
        )
    with open_features(cluster) as features:
        features.remove(table)
    if as_json:
        output.show_json({"removed": table})
    else:
        output.done(f"table {table} is removed")


def _typed(table: Table) -> list[str]:
    return [f"{name}: {kind}" for name, kind in zip(table.key, table.key_types, strict=True)]


def _ttl(table: Table) -> str:
    from holdfast.features.consistency import duration_of

    return "-" if table.ttl_s is None else duration_of(table.ttl_s)

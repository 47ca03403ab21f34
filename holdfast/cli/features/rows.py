"""`holdfast features get`, `put`, `delete`: rows, one by one."""

from __future__ import annotations

import datetime
import json
import sys
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from holdfast.cli import output
from holdfast.cli.features.opening import KeyArgument, TableArgument, open_features
from holdfast.cli.options import ClusterOption, JsonOption
from holdfast.wire.errors import HoldfastError, Missing, Usage

if TYPE_CHECKING:
    from holdfast.features.store import FoundRow
    from holdfast.features.table import Table

GET_EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast features get drivers d7[/]

  [cyan]holdfast features get views user-3 item-9[/]      a key of two parts
"""
PUT_EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast features put drivers '{"driver_id": "d7", "trips": 12, "rating": 4.5}'[/]

  [cyan]holdfast features put drivers < rows.jsonl[/]     a row a line, written as they come


Without its time a row is of now. A column that is not named is null: a row is written whole.
"""
DELETE_EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast features delete drivers d7[/]


An event of before the deletion that comes late does not bring the row back.
"""

# Lines of stdin that are written together.
_LINES: Final = 1_000
_SHOWN_CHARACTERS: Final = 200


def get(
    table: TableArgument,
    key: KeyArgument,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """A row: its values, its version, the time of its event, and how old it is."""
    with open_features(cluster) as features:
        known = features.registry.table(table)
        row = features.get(table, *known.key_from_text(*key), fresh=True)
    if row is None:
        raise Missing(
            f"table {table} has no row {' '.join(key)}",
            why="it was never written, or its time is over",
            fix=f"holdfast features put {table} '{{...}}'",
        )
    if as_json:
        output.show_json(_fields(known, row))
        return
    at = _moment(row.version.at_us)
    age_s = datetime.datetime.now(datetime.UTC) - at
    state = "deleted" if row.deleted else "its time to live is over" if row.expired else ""
    output.show_facts(
        [
            *zip(known.key, row.key, strict=True),
            *((name, _short(value)) for name, value in row.values.items()),
            (known.time, f"{at.isoformat()} ({age_s.total_seconds():,.1f}s ago)"),
            ("version", f"{row.version.writer:016x}-{row.version.sequence}"),
            *((("state", state),) if state else ()),
        ]
    )


def put(
    table: TableArgument,
    row: Annotated[
        str | None, typer.Argument(metavar="JSON", help="A row; without one, lines of stdin.")
    ] = None,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a row, or each line of stdin; returns when they are durable."""
    written = newer = 0
    with open_features(cluster) as features:
        known = features.registry.table(table)
        lines = iter([(0, row)]) if row is not None else enumerate(sys.stdin, 1)
        parsed = (_row(known, number, line) for number, line in lines if line.strip())
        while some := list(islice(parsed, _LINES)):
            try:
                done = features.put(table, some)
            except HoldfastError:
                if written:
                    output.note(f"{written} rows before it are written")
                raise
            written += len(done)
            newer += done.count(False)
    if as_json:
        output.show_json({"table": table, "written": written, "newer_there": newer})
        return
    many = "1 row is" if written == 1 else f"{written} rows are"
    older = f"; of {newer} a newer one was there already" if newer else ""
    output.done(f"{many} written to table {table}{older}")


def delete(
    table: TableArgument,
    key: KeyArgument,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete a row."""
    with open_features(cluster) as features:
        known = features.registry.table(table)
        features.delete(table, *known.key_from_text(*key))
    if as_json:
        output.show_json({"table": table, "deleted": list(key)})
    else:
        output.done(f"row {' '.join(key)} of table {table} is deleted")


def _row(table: Table, number: int, line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError as error:
        where = f"line {number}: " if number else ""
        raise Usage(
            f"{where}this is no row: {line.strip()[:_SHOWN_CHARACTERS]}",
            why=str(error),
            fix=f"""write it as JSON: '{{"{table.key[0]}": ..., "{table.living[0].name}": ...}}'""",
        ) from error
    if not isinstance(found, dict):
        raise Usage(
            f"{'line ' + str(number) + ': ' if number else ''}a row is an object of JSON",
            fix=f"""'{{"{table.key[0]}": ..., "{table.living[0].name}": ...}}'""",
        )
    return found


def _fields(table: Table, row: FoundRow) -> dict[str, Any]:
    return {
        "table": table.name,
        "key": dict(zip(table.key, (_plain(part) for part in row.key), strict=True)),
        "values": {name: _plain(value) for name, value in row.values.items()},
        "at": _moment(row.version.at_us).isoformat(),
        "writer": f"{row.version.writer:016x}",
        "sequence": row.version.sequence,
        "expired": row.expired,
        "deleted": row.deleted,
    }


def _plain(value: object) -> object:
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    if hasattr(value, "tolist"):
        return value.tolist()
    return value


def _short(value: object) -> str:
    text = "-" if value is None else str(_plain(value))
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"


def _moment(at_us: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(microseconds=at_us)

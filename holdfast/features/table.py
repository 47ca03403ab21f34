"""Tables as values: what users declare, what the coordination plane keeps, and what may become of
one. Pure.

    Table("drivers", key="driver_id", time="at", ttl="7d", consistency="strong", home="eu",
          columns={"trips": "int64", "rating": "float32", "taste": "float32[64]"})

A column has a number, given once and never to another one. With each change the schema's number
grows by one, and a column knows from which schema on it is in the rows, and until which: so the
newest definition reads every row that was ever written.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from holdfast.features import keys
from holdfast.features.columns import Column, ColumnType, checked, nearest
from holdfast.features.consistency import Consistency, Level, duration_of, seconds_of
from holdfast.wire.errors import Conflict, Missing, Usage

if TYPE_CHECKING:
    import numpy as np

    from holdfast.features.layout import RowLayout

__all__ = [
    "ChangedSetting",
    "Column",
    "ColumnType",
    "Consistency",
    "Level",
    "Table",
    "TableChange",
    "change",
]

# What one row of 1 MiB can be read and shown with; a thousand features are two tables.
COLUMNS_MAX: Final = 500
# With those that were retired: the definition stays far below what the plane takes (512 KiB).
COLUMNS_EVER_MAX: Final = 2_000
# One value of one cell; every engine copies it whole for each write.
ROW_BYTES_MAX: Final = 1_024 * 1_024
COPIES: Final = 3
COPIES_MAX: Final = 9
# Cassandra's own limit: 20 years.
TTL_S_MAX: Final = 630_720_000.0
# Clocks of machines that are kept in step differ by less; an event later than this would win for
# as long as its time has not come.
SKEW_MAX_S: Final = 60.0
SKEW_MAX_S_MAX: Final = 86_400.0

_HOME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


@dataclass(frozen=True, init=False)
class Table:
    """Features of one kind of entity, found by its key, each row with the time of its event.

    `retired`: names of columns that are to be retired, as the user's file has them; in a stored
    definition it is empty, and the columns themselves say it.
    """

    name: str
    key: tuple[str, ...]
    key_types: tuple[ColumnType, ...]
    time: str
    columns: tuple[Column, ...]
    ttl_s: float | None
    consistency: Consistency
    home: str | None
    copies: int
    skew_max_s: float
    schema: int
    retired: tuple[str, ...]

    def __init__(
        self,
        name: str,
        key: str | Sequence[str] | Mapping[str, str],
        columns: Mapping[str, str] | Sequence[Column],
        *,
        time: str = "at",
        ttl: str | None = None,
        consistency: str | Consistency = "strong",
        home: str | None = None,
        copies: int = COPIES,
        skew_max_s: float = SKEW_MAX_S,
        retired: str | Sequence[str] = (),
        key_types: Sequence[ColumnType] | None = None,
        ttl_s: float | None = None,
        schema: int = 1,
    ) -> None:
        """Users give what stands before `key_types`; that, `ttl_s` and `schema` are for
        `dataclasses.replace` and for definitions that are read. `Usage` names what is wrong."""
        checked("table", name)
        try:
            keyed = _keys(key, key_types)
            if ttl is not None:
                ttl_s = seconds_of("ttl", ttl)
            given = {
                "name": name,
                "key": tuple(keyed),
                "key_types": tuple(keyed.values()),
                "time": checked("time", time),
                "columns": _columns(columns),
                "ttl_s": ttl_s,
                "consistency": Consistency.parse(consistency),
                "home": home,
                "copies": copies,
                "skew_max_s": skew_max_s,
                "schema": schema,
                "retired": (retired,) if isinstance(retired, str) else tuple(retired),
            }
            for field, value in given.items():
                object.__setattr__(self, field, value)
            _check(self)
        except Usage as error:
            raise type(error)(
                f"table {name!r}: {error.what}", why=error.why, fix=error.fix
            ) from error

    # --- columns ----------------------------------------------------------------------------------

    @cached_property
    def living(self) -> tuple[Column, ...]:
        """The columns that are written and returned: all but the retired ones."""
        return tuple(column for column in self.columns if not column.retired)

    @cached_property
    def by_name(self) -> Mapping[str, Column]:
        """All columns, also the retired ones."""
        return {column.name: column for column in self.columns}

    @cached_property
    def first_schema(self) -> int:
        """The schema with which it began. A row of an earlier one is another table's, which had
        this name and was removed."""
        return min(column.since for column in self.columns)

    def column(self, name: str) -> Column:
        """The column of this name, also a retired one; `Usage` with the nearest name."""
        found = self.by_name.get(name)
        if found is not None:
            return found
        names = [column.name for column in self.living]
        raise Usage(
            f"table {self.name!r} has no column {str(name)[:100]!r}",
            why=f"it has {_some(names)}",
            fix=nearest(str(name), names) or f"holdfast features describe {self.name}",
        )

    @cached_property
    def _layouts(self) -> dict[int, RowLayout]:
        return {}

    def layout(self, schema: int | None = None) -> RowLayout:
        """Where what is in rows of a schema, by default the table's own. `Missing`: this definition
        is older than the schema."""
        schema = self.schema if schema is None else schema
        found = self._layouts.get(schema)
        if found is None:
            if not 1 <= schema <= self.schema:
                raise Missing(
                    f"table {self.name!r} is not known in schema {schema}",
                    why=f"this definition is of schema {self.schema}",
                    fix="read the definition from the coordination plane again",
                )
            from holdfast.features.layout import RowLayout  # noqa: PLC0415 (it needs numpy)

            columns = [column for column in self.columns if column.is_in(schema)]
            found = self._layouts[schema] = RowLayout(schema, columns)
        return found

    # --- keys -------------------------------------------------------------------------------------

    def key_bytes(self, *values: object) -> bytes:
        """The canonical bytes of a key, its parts in the order of `key`: the same for equal keys
        and for no others. `Usage`: a part is None, NaN, empty or of another type."""
        return keys.encoded(self.key, self.key_types, values)

    def keys_bytes(
        self, columns: Sequence[object] | np.ndarray[Any, Any] | Mapping[str, Any]
    ) -> list[bytes]:
        """The bytes of many keys: the values of the only part, or the values of each part by its
        name."""
        if not isinstance(columns, Mapping):
            if len(self.key) > 1:
                raise Usage(
                    f"table {self.name!r}: a key has {len(self.key)} parts",
                    why=f"it is made of {', '.join(self.key)}",
                    fix="give the values of each part by its name",
                )
            columns = {self.key[0]: columns}
        for name in self.key:
            if name not in columns:
                raise Usage(
                    f"table {self.name!r}: {name!r} of the key is missing",
                    why=f"a key is made of {', '.join(self.key)}",
                    fix=f"give a value of {name!r} for each row",
                )
        return keys.encoded_all(self.key, self.key_types, [columns[name] for name in self.key])

    def key_of(self, data: bytes) -> tuple[object, ...]:
        """The parts of the key that has these bytes; `Corrupt` if none has."""
        return keys.decoded(self.key_types, data)

    def key_from_text(self, *texts: str) -> tuple[object, ...]:
        """The parts of a key as people write them on a command line."""
        return keys.parsed(self.key, self.key_types, texts)

    # --- consistency ------------------------------------------------------------------------------

    @property
    def read_level(self) -> Level:
        """How strongly its reads are meant, where they reach the store."""
        return Level.STRONG if self.consistency.strong else Level.EVENTUAL

    @property
    def write_level(self) -> Level:
        """How strongly its writes are meant."""
        return Level.STRONG if self.consistency.strong else Level.EVENTUAL


# --- what becomes of a table ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChangedSetting:
    """A setting that is not a column's, before and after, as people write it."""

    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class TableChange:
    """What applying a definition does. `table`: what is to be stored, the same as `before` where
    nothing changes. `warnings`: what is allowed, and somebody should know."""

    before: Table | None
    table: Table
    added: tuple[Column, ...] = ()
    retired: tuple[Column, ...] = ()
    unchanged: tuple[Column, ...] = ()
    settings: tuple[ChangedSetting, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def is_new(self) -> bool:
        return self.before is None

    @property
    def is_empty(self) -> bool:
        """Whether the table is already as it should be."""
        return self.before == self.table

    def lines(self) -> list[str]:
        """The difference for people: + added, - retired, ~ changed, ! to be known."""
        return [
            *(f"+ {column.name}: {column.type}" for column in self.added),
            *(f"- {column.name}: {column.type} (retired)" for column in self.retired),
            *(f"~ {each.name}: {each.before} -> {each.after}" for each in self.settings),
            *(f"! {warning}" for warning in self.warnings),
        ]


# The names of what it answers with here; the whole house has others of the short one.
Change = TableChange


def change(old: Table | None, new: Table) -> TableChange:
    """What becomes of a stored table (None: there is none) by what a user declares. A column may be
    added or retired. `Conflict`, with all reasons: something written would be lost, or read as
    something else."""
    said = {*new.retired, *(column.name for column in new.columns if column.retired)}
    wanted = [column for column in new.columns if column.name not in said]
    if old is None:
        columns = tuple(
            replace(column, number=number, since=1) for number, column in enumerate(wanted, 1)
        )
        table = replace(new, columns=columns, retired=(), schema=1)
        return TableChange(None, table, added=table.columns)
    assert old.name == new.name, "another table"
    if problems := list(_problems(old, new, said)):
        raise Conflict(
            f"table {old.name!r} cannot become what the file says",
            why="; ".join(why for why, _ in problems),
            fix="; ".join(dict.fromkeys(fix for _, fix in problems)),
        )
    schema = old.schema + 1
    kept = [
        replace(column, until=schema) if column.name in said and not column.retired else column
        for column in old.columns
    ]
    first = max(column.number for column in old.columns) + 1
    new_ones = [column for column in wanted if column.name not in old.by_name]
    added = [
        replace(column, number=number, since=schema)
        for number, column in enumerate(new_ones, first)
    ]
    made = replace(new, columns=(*kept, *added), retired=(), schema=schema)
    if replace(made, schema=old.schema) == old:
        return TableChange(old, old, unchanged=old.living)
    return TableChange(
        old,
        made,
        added=tuple(added),
        retired=tuple(column for column in kept if column.until == schema),
        unchanged=tuple(column for column in kept if not column.retired),
        settings=tuple(_settings(old, made)),
        warnings=tuple(_warnings(old, made)),
    )


def _problems(old: Table, new: Table, said: set[str]) -> Iterable[tuple[str, str]]:
    """What cannot be, with what to do instead."""
    other = "make another table, and fill it from the history of this one"
    if (old.key, old.key_types) != (new.key, new.key_types):
        yield f"its key is {_key_text(old)} and not {_key_text(new)}: no row would be found", other
    if old.time != new.time:
        yield f"its time is {old.time!r} and not {new.time!r}: versions are made of it", other
    for column in old.columns:
        found = new.by_name.get(column.name)
        if column.name in said:
            continue
        if column.retired:
            if found is not None:
                why = f"{column.name!r} was retired: its old values would come back as new ones"
                yield why, f"call the new column otherwise, or write retired=[{column.name!r}]"
        elif found is None:
            why = f"{column.name!r} is not in the file, and what is written in it would be lost"
            yield why, f"put it back, or write retired=[{column.name!r}]"
        elif found.type != column.type:
            why = f"{column.name!r} is of the type {column.type} and not {found.type}"
            yield why, "add a column of another name, and retire this one"


def _settings(old: Table, new: Table) -> Iterable[ChangedSetting]:
    pairs = zip(_setting_texts(old).items(), _setting_texts(new).values(), strict=True)
    for (name, before), after in pairs:
        if before != after:
            yield ChangedSetting(name, before, after)


def _setting_texts(table: Table) -> dict[str, str]:
    return {
        "ttl": "for ever" if table.ttl_s is None else duration_of(table.ttl_s),
        "consistency": table.consistency.text(),
        "home": table.home or "none",
        "copies": str(table.copies),
        "skew_max_s": f"{table.skew_max_s:g}",
    }


def _warnings(old: Table, new: Table) -> Iterable[str]:
    if new.ttl_s is not None and (old.ttl_s is None or new.ttl_s < old.ttl_s):
        yield f"the ttl is shorter: rows older than {duration_of(new.ttl_s)} are forgotten online"
    if old.consistency.strong and not new.consistency.strong:
        yield "a read may miss what was acknowledged from now on"
    if new.consistency.strong and not old.consistency.strong:
        yield "what was written until now is read strongly only once all copies agree (a repair)"
    elif new.consistency.strong and new.home != old.home:
        yield (
            "strong reads and writes go to another region: what was acknowledged in the old one"
            " counts there only once its copies agree (a repair)"
        )
    if new.copies < old.copies:
        yield f"there are fewer copies: {new.copies} instead of {old.copies}"
    if new.copies > old.copies:
        yield f"copies {old.copies + 1} to {new.copies} are empty until a repair has filled them"


def _key_text(table: Table) -> str:
    pairs = zip(table.key, table.key_types, strict=True)
    return ", ".join(f"{name}: {kind}" for name, kind in pairs)


# --- what is declared -----------------------------------------------------------------------------


def _keys(
    key: str | Sequence[str] | Mapping[str, str], types: Sequence[ColumnType] | None
) -> dict[str, ColumnType]:
    """The parts of the key in their order, with their types."""
    if isinstance(key, Mapping):
        found = {name: ColumnType.parse(text) for name, text in key.items()}
    else:
        names = [key] if isinstance(key, str) else list(key)
        if len(set(names)) != len(names):
            raise Usage(f"a part of the key is there twice: {', '.join(names)}", fix="keep one")
        if types is None:
            types = [ColumnType("string")] * len(names)
        found = dict(zip(names, types, strict=True))
    if not found:
        raise Usage("the key has no part", fix='write key="driver_id", for example')
    for name, kind in found.items():
        checked("key", name)
        if kind.base not in keys.KEY_BASES or kind.length is not None:
            raise Usage(
                f"{name!r} of the key cannot be of the type {kind}",
                why="two keys must be equal, or not, beyond doubt",
                fix=f"write one of {', '.join(keys.KEY_BASES)}",
            )
    return found


def _columns(given: Mapping[str, str] | Sequence[Column]) -> tuple[Column, ...]:
    if not isinstance(given, Mapping):
        return tuple(sorted(given, key=lambda column: column.number))
    found = []
    for number, (name, text) in enumerate(given.items(), 1):
        checked("column", name)
        try:
            found.append(Column(name, ColumnType.parse(text), number))
        except Usage as error:
            raise Usage(f"column {name!r}: {error.what}", why=error.why, fix=error.fix) from error
    return tuple(found)


def _check(table: Table) -> None:
    """`Usage`, if the parts do not go together."""
    names = [*table.key, table.time, *(column.name for column in table.columns)]
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise Usage(
            f"{twice[0]!r} is the name of two things",
            why="the key, the time and the columns stand side by side in a row",
            fix="call one of them otherwise",
        )
    numbers = [column.number for column in table.columns]
    if len(set(numbers)) != len(numbers) or any(number < 1 for number in numbers):
        raise Usage("columns have the numbers 1, 2, ..., each once", fix="number them anew")
    if not table.living:
        raise Usage("there is no column", fix='write columns={"trips": "int64"}, for example')
    if len(table.living) > COLUMNS_MAX or len(table.columns) > COLUMNS_EVER_MAX:
        raise Usage(
            f"there are {len(table.living)} columns, and {len(table.columns)} with the retired",
            why=f"a table has at most {COLUMNS_MAX}, and {COLUMNS_EVER_MAX} with the retired",
            fix="make two tables of it, or a vector of what belongs together: float32[64]",
        )
    width = sum(column.type.width_bytes for column in table.living)
    if width > ROW_BYTES_MAX * 3 // 4:
        raise Usage(
            f"the columns of a fixed width alone have {width} bytes",
            why=f"a row has at most {ROW_BYTES_MAX} bytes, and every write copies it whole",
            fix="keep what is large in files, and their names in the table",
        )
    for name in table.retired:
        checked("column", name)
    _check_settings(table)


def _check_settings(table: Table) -> None:
    if table.ttl_s is not None and not 1.0 <= table.ttl_s <= TTL_S_MAX:
        raise Usage(
            f"ttl cannot be {table.ttl_s!r} seconds",
            why=f"it is at least 1s and at most {duration_of(TTL_S_MAX)}",
            fix="leave it out for rows that stay for ever",
        )
    if table.home is not None and not _HOME.fullmatch(str(table.home)):
        raise Usage(
            f"{str(table.home)[:100]!r} cannot be the home of a table",
            why="it is the name of a region: letters, digits, dots, dashes and underscores",
            fix='write home="eu", for example, or leave it out where there is one region',
        )
    if type(table.copies) is not int or not 1 <= table.copies <= COPIES_MAX:
        raise Usage(
            f"there cannot be {table.copies!r} copies",
            why=f"it is a whole number from 1 to {COPIES_MAX}",
            fix=f"write copies={COPIES}: one machine may die, and nothing stops",
        )
    if not (math.isfinite(table.skew_max_s) and 0.0 <= table.skew_max_s <= SKEW_MAX_S_MAX):
        raise Usage(
            f"skew_max_s cannot be {table.skew_max_s!r}",
            why=f"it is a number of seconds from 0 to {SKEW_MAX_S_MAX:g}",
            fix=f"write skew_max_s={SKEW_MAX_S:g}",
        )
    if type(table.schema) is not int or not 1 <= table.schema < 2**32:
        raise Usage(f"there is no schema {table.schema!r}", fix="the first one is 1")


def _some(names: Sequence[str]) -> str:
    """The first names, so that a sentence stays one."""
    shown = ", ".join(names[:12])
    return shown if len(names) <= 12 else f"{shown} and {len(names) - 12} more"

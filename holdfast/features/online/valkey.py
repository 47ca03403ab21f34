"""Online stores on Valkey and Redis: one of ours on this machine, which keeps what it acknowledged,
or one that people run, alone or as a cluster, for eventual tables.

    {prefix}t:{table}:{key}      a row, whole

All of a read goes in one pipeline, and so does all of a write: what is newest is decided by a
script on the server (`newest`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Final

from holdfast.features.address import VALKEY, FeaturesAddress
from holdfast.features.keys import KEY_BYTES_MAX
from holdfast.features.layout import HEADER_BYTES
from holdfast.features.online import newest, server_settings
from holdfast.features.online.keyspace import Keyspace, OneServer, RespCommand
from holdfast.features.online.redis_cluster import ServerCluster
from holdfast.features.online.resp import ANSWER_S, Reply, Server, pack
from holdfast.features.online.resp_failures import RAISED, translate
from holdfast.features.online.store import Asked, Found, StoreStatus
from holdfast.features.rows import Row
from holdfast.features.table import ROW_BYTES_MAX, Level, Table
from holdfast.wire.errors import Conflict, Refused, TimedOut, TooLarge, Usage

# In one command: the server does nothing else meanwhile. A thousand rows take it some milliseconds.
KEYS_A_COMMAND_MAX: Final = 1_000
BYTES_A_COMMAND_MAX: Final = 1024 * 1024
# On the way at once; more rows than that take several round trips.
BYTES_A_WRITE_MAX: Final = 16 * 1024 * 1024
# So many keys of the server are looked at in one step of a scan: among them are some of the table,
# or none.
SCAN_COUNT: Final = 1_000
# A scan that has found nothing says so after this, and goes on with the next call.
SCAN_S: Final = 1.0
# A server looks at some 100,000 keys a second, and removes them.
FORGET_S: Final = 600.0


class ValkeyStore:
    """The newest rows, on a server or a cluster that speaks RESP. Any thread may use it."""

    def __init__(self, address: FeaturesAddress, answer_s: float = ANSWER_S) -> None:
        """`answer_s`: how long a call waits for its turn, and then for an answer."""
        self._is_ours = address.engine == VALKEY
        self._prefix = address.prefix.encode()
        made = ServerCluster if address.cluster else OneServer
        self._keys: Keyspace = made(address, answer_s)
        self._is_cluster = address.cluster
        self._closed = False

    # --- tables -----------------------------------------------------------------------------------

    def prepare(self, table: Table) -> None:
        self._refuse_if_closed()
        strong = table.write_level is Level.STRONG
        if strong and not self._is_ours:
            raise Refused(
                f"table {table.name!r} is {table.consistency}, and cannot be kept here",
                why="Redis and Valkey copy to their replicas after they have answered: a failover"
                " loses writes that were acknowledged",
                fix="make the table eventual, or keep it in Cassandra or the cluster's own Valkey",
            )
        for server in self._keys.primaries():
            server_settings.check(server, table, cluster=self._is_cluster)
            self._check_script(server, table)

    def forget(self, table: Table) -> None:
        self._refuse_if_closed()
        deadline_s = time.monotonic() + FORGET_S
        what = f"table {table.name!r} cannot be removed"
        after = b""
        while True:
            keys, after = self._scan_keys(table, after, what)
            self._exchange(
                [
                    RespCommand(slot, pack(b"UNLINK", *[keys[place] for place in places]))
                    for slot, places in self._grouped(keys)
                ],
                what,
            )
            if not after:
                return
            if time.monotonic() > deadline_s:
                raise TimedOut(
                    what, why=f"not within {FORGET_S:g} s", fix="do it again: it goes on"
                )

    # --- rows -------------------------------------------------------------------------------------

    def write(self, table: Table, rows: Sequence[Row]) -> list[bool]:
        self._refuse_if_closed()
        _check_rows(table, rows)
        what = f"{len(rows)} rows of table {table.name!r} cannot be written"
        keys = self._wire_keys(table, [row.key for row in rows])
        written = [False] * len(rows)
        for wave in self._waves(keys, rows):
            for places, flags in zip(wave, self._write(table, keys, rows, wave, what), strict=True):
                for place, flag in zip(places, flags, strict=True):
                    written[place] = flag == 1
        return written

    def read(self, asked: Sequence[Asked]) -> list[list[Found]]:
        self._refuse_if_closed()
        commands: list[RespCommand] = []
        answers: list[tuple[int, list[int]]] = []  # of which table each command is, and which keys
        for number, one in enumerate(asked):
            keys = self._wire_keys(one.table, one.keys)
            for slot, places in self._grouped(keys):
                words = [keys[place] for place in places]
                commands.append(RespCommand(slot, pack(b"MGET", *words), reads=True))
                answers.append((number, places))
        found: list[list[Found]] = [[None] * len(one.keys) for one in asked]
        if not commands:
            return found
        names = ", ".join(sorted({one.table.name for one in asked}))
        replies = self._exchange(commands, f"features cannot be read ({names})")
        for (number, places), values in zip(answers, replies, strict=True):
            if len(places) == len(found[number]):
                found[number] = values  # in the order of the keys
                continue
            rows = found[number]
            for place, value in zip(places, values, strict=True):
                rows[place] = value
        return found

    def scan(self, table: Table, after: bytes = b"") -> tuple[list[tuple[bytes, bytes]], bytes]:
        self._refuse_if_closed()
        what = f"table {table.name!r} cannot be gone over"
        front = len(self._prefix_of(table))
        begin_s = time.monotonic()
        while True:
            keys, after = self._scan_keys(table, after, what)
            own = [key[front:] for key in keys]
            (found,) = self.read([Asked(table, own, Level.STRONG)])
            rows = [(key, data) for key, data in zip(own, found, strict=True) if data is not None]
            if rows or not after or time.monotonic() - begin_s > SCAN_S:
                return rows, after

    # --- the store --------------------------------------------------------------------------------

    def status(self) -> StoreStatus:
        return server_settings.status(self._keys, ours=self._is_ours, closed=self._closed)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._keys.close()

    # --- private ----------------------------------------------------------------------------------

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise Usage("the store of features is closed", fix="open another one")

    def _prefix_of(self, table: Table) -> bytes:
        return b"%bt:%b:" % (self._prefix, table.name.encode())

    def _wire_keys(self, table: Table, keys: Sequence[bytes]) -> list[bytes]:
        prefix = self._prefix_of(table)
        return [prefix + key for key in keys]

    def _grouped(self, keys: Sequence[bytes]) -> Iterator[tuple[int, list[int]]]:
        """The places of keys that may go in one command, with their slot."""
        by_slot: dict[int, list[int]] = {}
        if self._is_cluster:
            for place, key in enumerate(keys):
                by_slot.setdefault(self._keys.slot_of(key), []).append(place)
        elif keys:
            by_slot[0] = list(range(len(keys)))
        for slot, places in by_slot.items():
            for first in range(0, len(places), KEYS_A_COMMAND_MAX):
                yield slot, places[first : first + KEYS_A_COMMAND_MAX]

    def _waves(self, keys: Sequence[bytes], rows: Sequence[Row]) -> Iterator[list[list[int]]]:
        """The places of rows: those of one command together, and the commands of one round trip."""
        wave: list[list[int]] = []
        on_the_way = 0
        for _, places in self._grouped(keys):
            for chunk, size in _chunks(places, rows):
                if wave and on_the_way + size > BYTES_A_WRITE_MAX:
                    yield wave
                    wave, on_the_way = [], 0
                wave.append(chunk)
                on_the_way += size
        if wave:
            yield wave

    def _write(
        self,
        table: Table,
        keys: Sequence[bytes],
        rows: Sequence[Row],
        wave: Sequence[Sequence[int]],
        what: str,
    ) -> list[list[int]]:
        """What the script says of the rows of each command."""

        def command(places: Sequence[int], *, whole: bool) -> RespCommand:
            named = [keys[place] for place in places]
            values = [rows[place].data for place in places]
            given = [(data, newest.over_at(data, table.ttl_s)) for data in values]
            return RespCommand(self._keys.slot_of(named[0]), newest.call(named, given, whole=whole))

        commands = [command(places, whole=False) for places in wave]
        replies = self._keys.exchange(commands, what)
        unknown = [place for place, reply in enumerate(replies) if newest.is_unknown(reply)]
        if unknown:
            # The server has begun anew. One that did not know the script has done nothing.
            again = [command(wave[place], whole=True) for place in unknown]
            for place, reply in zip(unknown, self._keys.exchange(again, what), strict=True):
                replies[place] = reply
        self._check(commands, replies, what)
        return replies

    def _exchange(self, commands: Sequence[RespCommand], what: str) -> list[Reply]:
        if not commands:
            return []
        replies = self._keys.exchange(commands, what)
        self._check(commands, replies, what)
        return replies

    def _check(self, commands: Sequence[RespCommand], replies: Sequence[Reply], what: str) -> None:
        """Raise what the server has said of a command. Of its many values one may be an error."""
        for command, reply in zip(commands, replies, strict=True):
            if isinstance(reply, Exception):
                raise translate(reply, what, self._keys.name_of(command.slot))

    def _check_script(self, server: Server, table: Table) -> None:
        """Whether we may write there, and the server has the script from now on."""
        what = f"table {table.name!r} cannot be prepared"
        try:
            server.ask_packed(newest.call([], [], whole=True))
        except RAISED as error:
            raise translate(error, what, server.name) from error

    def _scan_keys(self, table: Table, after: bytes, what: str) -> tuple[list[bytes], bytes]:
        """One step over the keys of one server: those of the table, and where to go on."""
        servers = {server.name.encode(): server for server in self._keys.primaries()}
        names = sorted(servers)
        name, _, cursor = after.rpartition(b"|") if after else (names[0], b"", b"0")
        if name not in servers or not cursor.isdigit():
            raise Conflict(
                what,
                why=f"{name.decode(errors='replace')} has no keys of the cluster any more",
                fix="begin anew",
            )
        match = (b"MATCH", self._prefix_of(table) + b"*", b"COUNT", b"%d" % SCAN_COUNT)
        try:
            cursor, keys = servers[name].ask(b"SCAN", cursor, *match)
        except RAISED as error:
            raise translate(error, what, name.decode()) from error
        found = list(dict.fromkeys(keys))
        if cursor != b"0":
            return found, b"%b|%b" % (name, cursor)
        following = names.index(name) + 1
        return found, b"%b|0" % names[following] if following < len(names) else b""


def _chunks(places: Sequence[int], rows: Sequence[Row]) -> Iterator[tuple[list[int], int]]:
    """Places of rows that are small enough together for one command, with their bytes."""
    chunk: list[int] = []
    size = 0
    for place in places:
        own = len(rows[place].data) + len(rows[place].key)
        if chunk and size + own > BYTES_A_COMMAND_MAX:
            yield chunk, size
            chunk, size = [], 0
        chunk.append(place)
        size += own
    if chunk:
        yield chunk, size


def _check_rows(table: Table, rows: Sequence[Row]) -> None:
    """Nothing is written of rows of which one cannot be."""
    for row in rows:
        if len(row.data) > ROW_BYTES_MAX or len(row.key) > KEY_BYTES_MAX:
            raise TooLarge(
                f"a row of table {table.name!r} has {len(row.data):,} bytes, its key"
                f" {len(row.key):,}",
                why=f"a row has at most {ROW_BYTES_MAX:,}, a key {KEY_BYTES_MAX:,}",
                fix="keep large values in a blob store, and their names in the table",
            )
        if len(row.data) < HEADER_BYTES or not row.key:
            raise Usage(f"this is no row of table {table.name!r}", fix="make it with rows.encode")

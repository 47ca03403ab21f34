"""Feature tables: written once, read everywhere, as consistent as each table asks.

    drivers = features.Table(
        "drivers", key="driver_id", time="at", ttl="7d", consistency="strong", home="eu", copies=3,
        columns={"trips": "int64", "rating": "float32", "taste": "float32[64]", "city": "string"},
    )

- `table`                 what a table is, and what may become of one (`change`)
- `columns`, `keys`       names and types of columns; the bytes of a key
- `consistency`           what a table promises: strong, bounded: 5s, eventual
- `records`, `loading`    a definition as a document; a user's file of tables
- `rows`                  a row as one value of bytes, and many rows as numpy's columns
- `versions`              which of two rows of one key is the newer
- `layout`, `values`      where what is in those bytes; what may stand in a column
- `registry`              the tables of a cluster, in the coordination plane
- `store`, `cache`        reading and writing tables; rows that are kept for a while
- `address`               where an online store is
- `hosting`               the Valkey of a cluster's folder (`valkey_server` is its process)
- `online`                the newest row of each key: one port, Valkey and Cassandra behind it
- `history`               every row that ever was, in Delta Lake

It imports `coordination`, `storage`, `topics` and what is below them. What decides has no I/O, no
clock and no chance. numpy is imported only by what handles rows: who lists tables needs none.
"""

from holdfast.features.loading import load_tables
from holdfast.features.table import Column, ColumnType, Consistency, Level, Table

__all__ = ["Column", "ColumnType", "Consistency", "Level", "Table", "load_tables"]

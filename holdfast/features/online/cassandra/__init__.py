"""Online stores on Cassandra. Its ring, copies, hints, repair and data centers are used, and not
built again.

- `store`       the port (`CassandraStore`)
- `statements`  names, statements, when a row expires, what goes together: pure
- `expiry`      the clock that a write brings along
- `connection`  the session with the ring; `routing`: whom a statement goes to; `waves`: sending
- `schema`      keyspaces and tables; `promises`: whether the ring keeps what a table promises
- `nodes`       how each node is, and whether it has what it said it has
- `failures`    what the driver raises, as errors of ours

Strong tables: docs/decisions/0032. It needs the package `cassandra-driver`.
"""

from holdfast.features.online.cassandra.nodes import CassandraNode
from holdfast.features.online.cassandra.store import CassandraStore

__all__ = ["CassandraNode", "CassandraStore"]

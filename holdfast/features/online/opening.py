"""An online store, by its address. The client of its engine is imported when it is needed."""

from __future__ import annotations

from holdfast.features.address import CASSANDRA, FeaturesAddress
from holdfast.features.online.store import OnlineStore
from holdfast.system.extras import require_extra

EXTRA = "features"


def open_store(address: str | FeaturesAddress, *, answer_s: float | None = None) -> OnlineStore:
    """A store; the caller closes it. Nothing is asked of the servers yet: the first call says
    whether they are there. `answer_s`: how long one answer may take, if not as long as usual.

    `Usage`: the address, or the password that it names, cannot be read. `MissingExtra`: the
    client of this engine is not installed.
    """
    where = FeaturesAddress.parse(address)
    given = {} if answer_s is None else {"answer_s": answer_s}
    if where.engine == CASSANDRA:
        require_extra("cassandra", EXTRA)
        from holdfast.features.online.cassandra import CassandraStore  # noqa: PLC0415

        store: OnlineStore = CassandraStore(where, **given)
        return store
    require_extra("redis", EXTRA)
    from holdfast.features.online.valkey import ValkeyStore  # noqa: PLC0415

    return ValkeyStore(where, **given)

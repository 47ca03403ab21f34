"""`python -m holdfast.topics.broker --data DIR --listen HOST:PORT`: the broker alone.

What `holdfast topics serve` runs too. With `--cluster` it is that cluster's own, which the
supervisor of the folder keeps alive.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.supervise.watch import register
from holdfast.system import logs
from holdfast.topics import hosting
from holdfast.wire.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.topics.broker.main import BrokerOptions


def _parse(arguments: list[str]) -> tuple[BrokerOptions, Path | None]:
    parser = argparse.ArgumentParser(prog="python -m holdfast.topics.broker")
    parser.add_argument("--data", type=Path, required=True, help="folder of the broker's state")
    parser.add_argument("--listen", default="127.0.0.1:9092", help="HOST:PORT; port 0: any free")
    parser.add_argument("--advertise", default="", help="HOST:PORT that clients are told")
    parser.add_argument("--sasl-users", type=Path, default=None, help="NAME PASSWORD [ROLE]")
    parser.add_argument("--cluster", type=Path, default=None, help="the folder that it belongs to")
    parser.add_argument("--tls-cert", type=Path, default=None)
    parser.add_argument("--tls-key", type=Path, default=None)
    parser.add_argument("--tls-ca", type=Path, default=None)
    parser.add_argument("--no-auto-create", action="store_true", help="topics are made on purpose")
    parser.add_argument("--partitions", type=int, default=1, help="of a topic that says nothing")
    parser.add_argument("--group-delay-ms", type=int, default=0, help="before a group's first join")
    parser.add_argument("--retention-s", type=float, default=30.0, help="between two looks at logs")
    given = parser.parse_args(arguments)
    from holdfast.topics.broker.main import BrokerOptions  # noqa: PLC0415

    options = BrokerOptions(
        data=given.data,
        listen=given.listen,
        advertise=given.advertise,
        users=given.sasl_users,
        tls_cert=given.tls_cert,
        tls_key=given.tls_key,
        tls_ca=given.tls_ca,
        auto_create=not given.no_auto_create,
        default_partitions=given.partitions,
        group_delay_ms=given.group_delay_ms,
        retention_s=given.retention_s,
    )
    return options, given.cluster


def main() -> int:
    logs.set_up()
    try:
        hosting.check_installed()  # before they are imported
        from holdfast.topics.broker.main import serve  # noqa: PLC0415

        options, cluster = _parse(sys.argv[1:])
        if cluster is None:
            return serve(options)
        with register(cluster.absolute(), hosting.KIND, hosting.NAME, kept=True) as registration:
            registration.note(address=options.listen)
            return serve(options)
    except HoldfastError as error:
        print(error, file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())

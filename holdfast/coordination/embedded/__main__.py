"""`python -m holdfast.coordination.embedded --data DIR --listen HOST:PORT`: the server alone.

What `holdfast coord serve` runs too; this way it starts without the command line's libraries.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from holdfast.coordination.embedded.main import ServerOptions, serve
from holdfast.system import logs
from holdfast.wire.errors import HoldfastError
from holdfast.wire.limits import SEGMENT_BYTES_MAX, SNAPSHOT_TRANSACTIONS, TICK_MS


def _parse(arguments: list[str]) -> ServerOptions:
    parser = argparse.ArgumentParser(prog="python -m holdfast.coordination.embedded")
    parser.add_argument("--data", type=Path, required=True, help="folder of the server's state")
    parser.add_argument("--listen", default="127.0.0.1:2181", help="HOST:PORT; port 0: any free")
    parser.add_argument(
        "--linger", type=float, default=None, help="end S seconds after the last client"
    )
    parser.add_argument("--tls-cert", type=Path, default=None)
    parser.add_argument("--tls-key", type=Path, default=None)
    parser.add_argument("--tls-ca", type=Path, default=None)
    parser.add_argument("--network", choices=["", "trusted"], default="", help="trusted: no TLS")
    parser.add_argument("--tick-ms", type=int, default=TICK_MS)
    parser.add_argument("--snapshot-every", type=int, default=SNAPSHOT_TRANSACTIONS)
    parser.add_argument("--segment-bytes", type=int, default=SEGMENT_BYTES_MAX)
    parser.add_argument("--open", action="store_true", help="let everybody in, as ZooKeeper does")
    given = parser.parse_args(arguments)
    return ServerOptions(
        data=given.data,
        listen=given.listen,
        linger_s=given.linger,
        tls_cert=given.tls_cert,
        tls_key=given.tls_key,
        tls_ca=given.tls_ca,
        network=given.network,
        tick_ms=given.tick_ms,
        snapshot_every=given.snapshot_every,
        segment_bytes=given.segment_bytes,
        open=given.open,
    )


def main() -> int:
    logs.set_up()
    try:
        return serve(_parse(sys.argv[1:]))
    except HoldfastError as error:
        print(error, file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())

"""What kazoo's test suite starts as `java`: our server, as its zoo.cfg asks for it.

Called as `java.py PYTHON ROOT <java's arguments> zoo.cfg`, by the interpreter of the suite's own
environment (which can read Java's key stores); PYTHON, with the project in ROOT, runs the server.

A listener of ours is either plain or TLS, and the suite wants both of one server. So the secure
port is a second server with a data folder of its own; the one test of TLS needs no common state.
"""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from types import FrameType


def read_config(path: Path) -> dict[str, str]:
    lines = [line.split("=", 1) for line in path.read_text().splitlines() if "=" in line]
    return {key.strip(): value.strip() for key, value in lines}


def pem(kind: str, data: bytes) -> str:
    text = "\n".join(textwrap.wrap(base64.b64encode(data).decode(), 64))
    return f"-----BEGIN {kind}-----\n{text}\n-----END {kind}-----\n"


def tls_options(config: dict[str, str], folder: Path) -> list[str]:
    """The suite's key stores as PEM files, and the options that name them."""
    # Only in the suite's environment; and slow, so that the plain server need not wait for it.
    import jks  # type: ignore[import-untyped]

    key_store, trust_store = (
        jks.KeyStore.load(config[f"ssl.{kind}.location"], config[f"ssl.{kind}.password"])
        for kind in ("keyStore", "trustStore")
    )
    entry = next(iter(key_store.private_keys.values()))
    authority = next(iter(trust_store.certs.values()))
    files = {
        "cert": "".join(pem("CERTIFICATE", one[1]) for one in entry.cert_chain),
        "key": pem("PRIVATE KEY", entry.pkey_pkcs8),
        "ca": pem("CERTIFICATE", authority.cert),
    }
    options = []
    for name, text in files.items():
        file = folder / f"{name}.pem"
        file.write_text(text)
        options += [f"--tls-{name}", str(file)]
    return options


def main() -> int:
    python, root, config_path = sys.argv[1], sys.argv[2], Path(sys.argv[-1])
    config = read_config(config_path)
    command = [python, "-m", "holdfast.coordination.embedded", "--open"]
    environment = {**os.environ, "PYTHONPATH": root}
    servers: list[subprocess.Popen[bytes]] = []
    told: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        told.append(number)
        for server in servers:
            server.send_signal(number)

    def start(folder: str, port: str, options: list[str]) -> None:
        where = ["--data", str(Path(config["dataDir"]) / folder), "--listen", f"127.0.0.1:{port}"]
        servers.append(subprocess.Popen([*command, *where, *options], env=environment))

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    start("plain", config["clientPort"], [])
    start("secure", config["secureClientPort"], tls_options(config, config_path.parent))
    if told:  # before the second one was there
        end(told[0], None)
    return max(abs(server.wait()) for server in servers)


if __name__ == "__main__":
    sys.exit(main())

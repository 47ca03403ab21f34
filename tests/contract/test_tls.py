"""TLS: a client that verifies the server, and refuses another one."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.coordination import Config, connect
from holdfast.wire.errors import Unavailable
from tests.conftest import require_service
from tests.servers import EmbeddedServer
from tests.servers.process import four_letter_word, free_port


class TLSServer(EmbeddedServer):
    """Ready when it listens: it does not answer four-letter words in the clear."""

    def ready(self) -> bool:
        return (self.data / "server.json").exists()


def _certificate(folder: Path, name: str) -> tuple[Path, Path]:
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", f"/CN={name}"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)),
        ],
        check=True,
        capture_output=True,
    )
    return cert, key


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    missing = "" if shutil.which("openssl") else "openssl is not installed; apt-get install openssl"
    require_service(missing)
    return _certificate(tmp_path, "server")


@pytest.fixture
def server(tmp_path: Path, certificate: tuple[Path, Path]) -> Iterator[EmbeddedServer]:
    cert, key = certificate
    options = ["--tls-cert", str(cert), "--tls-key", str(key)]
    with TLSServer(tmp_path / "server", free_port(), options) as made:
        yield made


def test_a_verified_server_is_spoken_to_and_another_is_not(
    server: EmbeddedServer, certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    with connect(f"zk://{server.hosts}?ca={certificate[0]}") as session:
        Config(session, "/settings").put(1)
        assert Config(session, "/settings").get().value == 1
    assert four_letter_word(server.port, "ruok") == ""
    stranger, _ = _certificate(tmp_path, "stranger")
    with pytest.raises(Unavailable) as unavailable:
        connect(f"zk://{server.hosts}?ca={stranger}", timeout_s=1)
    assert "CERTIFICATE_VERIFY_FAILED" in str(unavailable.value)
    with connect(f"zk://{server.hosts}?ca={stranger}&verify=none") as session:
        assert Config(session, "/settings").get().value == 1

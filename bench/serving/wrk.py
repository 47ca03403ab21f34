"""wrk: as many requests as 32 connections can carry. A Debian package of that name.

Its script sets the request once and has no function, so no Lua runs while it measures.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.serving.connections import Address
from bench.serving.contestants import Broken
from bench.serving.replies import Shot

CONNECTIONS: Final = 32
_UNITS: Final = {"us": 0.001, "ms": 1.0, "s": 1000.0, "m": 60_000.0}


@dataclass(frozen=True, slots=True)
class Found:
    """`bad`: answers that are not 2xx or 3xx, and connections that broke."""

    requests: int
    rate: float
    p50_ms: float
    p99_ms: float
    bad: int


def missing() -> str:
    return "" if shutil.which("wrk") else "wrk is not installed: apt-get install wrk"


def wrk(
    address: Address, shot: Shot, seconds: int, folder: Path, core: int, connections: int
) -> Found:
    body, script = folder / "body", folder / "request.lua"
    body.write_bytes(shot.body)
    lines = [f'wrk.method = "{shot.method}"']
    for name, value in {"content-type": "application/json", **shot.headers}.items():
        lines.append(f'wrk.headers["{name}"] = "{value}"')
    lines += [f'local file = io.open("{body}", "rb")', 'wrk.body = file:read("*a")', "file:close()"]
    script.write_text("\n".join(lines) + "\n")
    command = ["taskset", "-c", str(core), "wrk", "-t1", f"-c{connections}", f"-d{seconds}s"]
    command += ["--latency", "--timeout", "10s", "-s", str(script)]
    command.append(f"http://{address[0]}:{address[1]}{shot.path}")
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=seconds + 60, check=False
    )
    if done.returncode:
        raise Broken(f"wrk: {(done.stderr or done.stdout).strip()[-200:]}")
    return parsed(done.stdout)


def parsed(text: str) -> Found:
    requests = re.search(r"(\d+) requests in", text)
    rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
    if not requests or not rate:
        raise Broken(f"wrk said something else: {text[-200:]}")
    bad = sum(int(count) for count in re.findall(r"Non-2xx or 3xx responses: (\d+)", text))
    for counts in re.findall(r"Socket errors: (.*)", text):
        bad += sum(int(count) for count in re.findall(r"\d+", counts))
    return Found(int(requests[1]), float(rate[1]), _share(text, 50), _share(text, 99), bad)


def _share(text: str, percent: int) -> float:
    found = re.search(rf"{percent}%\s+([\d.]+)(us|ms|s|m)\b", text)
    if not found:
        raise Broken(f"wrk did not say its p{percent}: {text[-200:]}")
    return float(found[1]) * _UNITS[found[2]]

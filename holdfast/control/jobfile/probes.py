"""The keys of a job file that say where a program listens and how it is asked: `ports`, `ready`
and `live`. `jobfile` reads the rest."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import yaml

from holdfast.control.decide import units
from holdfast.control.decide.spec import JobSpec, Mode
from holdfast.control.jobfile.tree import COMMAND_SCHEMA, At, JobFileKey, words_of
from holdfast.wire.errors import Usage
from holdfast.wire.limits import PROBE_EVERY_S, PROBE_FAILURES, PROBE_TIMEOUT_S, REPLICA_READY_S
from holdfast.wire.probes import Probe, ProbeKind, ports_in, variable_of

# What a job file may say of them.
PROBE_EVERY_S_MIN: Final = 0.1
PROBE_EVERY_S_MAX: Final = 3_600.0
PROBE_TIMEOUT_S_MIN: Final = 0.05
PROBE_TIMEOUT_S_MAX: Final = 300.0
PROBE_FAILURES_MAX: Final = 1_000
# Ports that a job file may name.
JOB_PORTS_MAX: Final = 16

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,30}", re.ASCII)
_FREE: Final = "free"
_KINDS: Final = ("http", "tcp", "exec")
_FORM: Final = "one of {http: /PATH}, {tcp: PORT} and {exec: COMMAND}"
_PORTS: Final = "names, such as [http], or names with numbers, such as {http: 8080}"


def ports(at: At) -> dict[str, int]:
    """`[http, admin]`, or `{http: 8080, admin: free}`."""
    if isinstance(at.node, yaml.SequenceNode):
        found = {_port_name(item): 0 for item in at.items(_PORTS)}
        if len(found) < len(at.node.value):
            raise at.wrong("different names")
    elif isinstance(at.node, yaml.MappingNode):
        found = {_port_name(name): _port_number(value) for name, value in at.pairs()}
    else:
        raise at.wrong(_PORTS, f"ports: [{at.node.value}]" if at.node.value else "")
    if len({variable_of(name) for name in found}) < len(found):
        raise at.wrong("names that differ in more than case and dashes")
    numbers = [number for number in found.values() if number]
    if len(set(numbers)) < len(numbers) or len(found) > JOB_PORTS_MAX:
        raise at.wrong(f"at most {JOB_PORTS_MAX} different ports")
    return found


def _port_name(at: At) -> str:
    name = str(at.node.value)
    if not isinstance(at.node, yaml.ScalarNode) or not _NAME.fullmatch(name):
        fix = f"ports: {{http: {name}}}" if name.isdecimal() else ""
        raise at.wrong("the name of a port: a letter, then letters, digits, dashes", fix)
    return name


def _port_number(at: At) -> int:
    if isinstance(at.node, yaml.ScalarNode) and at.node.value == _FREE:
        return 0
    try:
        return at.whole(1, 65_535)
    except Usage:
        raise at.wrong(f"a number from 1 to 65535, or `{_FREE}`") from None


def ready(at: At) -> Probe:
    """When a replica is ready; `link`: it says so itself."""
    if isinstance(at.node, yaml.ScalarNode) and at.node.value == ProbeKind.LINK.value:
        return Probe(ProbeKind.LINK)
    return _probe(at, READY)


def live(at: At) -> Probe:
    """Whether a worker still does its work."""
    return _probe(at, PROBE)


def _probe(at: At, keys: Mapping[str, JobFileKey]) -> Probe:
    if not isinstance(at.node, yaml.MappingNode):
        raise at.wrong(_FORM)
    found = at.fields(keys)
    kinds = [kind for kind in _KINDS if kind in found]
    if len(kinds) != 1:
        raise at.wrong(_FORM)
    kind = ProbeKind(kinds[0])
    if "port" in found and kind is not ProbeKind.HTTP:
        raise at.wrong("without `port`, which is for http")
    names = {"every": "every_s", "timeout": "timeout_s", "within": "within_s"}
    asked = {names.get(key, key): value for key, value in found.items() if key not in _KINDS}
    if kind is ProbeKind.HTTP:
        asked["path"] = found["http"]
    elif kind is ProbeKind.TCP:
        asked["port"] = found["tcp"]
    else:
        asked["command"] = found["exec"]
    return Probe(kind, **asked)


def _path(at: At) -> str:
    path = at.scalar("a path, such as /healthz")
    if not path.startswith("/") or not path.isascii() or not path.isprintable() or " " in path:
        raise at.wrong("a path, such as /healthz", "the port is said apart: `port: NAME`")
    return path


def _port(at: At) -> str:
    word = at.scalar("the name of a port, or its number")
    if _NAME.fullmatch(word):
        return word
    return str(at.whole(1, 65_535))


def _seconds(at: At, least: float, most: float) -> float:
    found = at.seconds()
    if not least <= found <= most:
        raise at.wrong(f"from {units.duration_of(least)} to {units.duration_of(most)}")
    return found


# --- the keys -----------------------------------------------------------------------------------

_NUMBER_SCHEMA: Final = {"type": "integer", "minimum": 1, "maximum": 65_535}
_NAME_SCHEMA: Final = {"type": "string", "pattern": f"^{_NAME.pattern}$"}
_PORT_SCHEMA: Final = {"anyOf": [_NAME_SCHEMA, _NUMBER_SCHEMA]}

PROBE: Final[Mapping[str, JobFileKey]] = {
    "http": JobFileKey(
        _path,
        "path",
        "one of `http`, `tcp`, `exec`",
        "GET: a status from 200 to 399 passes.",
        "live: {http: /healthz}",
        {"type": "string", "pattern": "^/[!-~]*$"},
    ),
    "tcp": JobFileKey(
        _port,
        "port",
        "one of `http`, `tcp`, `exec`",
        "A connection that is accepted passes.",
        "live: {tcp: redis}",
        _PORT_SCHEMA,
    ),
    "exec": JobFileKey(
        words_of,
        "text, or list of words",
        "one of `http`, `tcp`, `exec`",
        "A command that ends with status 0 passes; it runs beside the worker.",
        "live: {exec: test -e ready}",
        COMMAND_SCHEMA,
    ),
    "port": JobFileKey(
        _port,
        "port",
        "the one called `http`, or the only one",
        "Where `http` asks: the name of a port, or a number.",
        "live: {http: /healthz, port: admin}",
        _PORT_SCHEMA,
    ),
    "every": JobFileKey(
        lambda at: _seconds(at, PROBE_EVERY_S_MIN, PROBE_EVERY_S_MAX),
        "duration",
        units.duration_of(PROBE_EVERY_S),
        "How often it is asked.",
        "live: {http: /healthz, every: 10s}",
        units.DURATION_SCHEMA,
    ),
    "timeout": JobFileKey(
        lambda at: _seconds(at, PROBE_TIMEOUT_S_MIN, PROBE_TIMEOUT_S_MAX),
        "duration",
        units.duration_of(PROBE_TIMEOUT_S),
        "No answer within this is a failure.",
        "live: {http: /healthz, timeout: 500ms}",
        units.DURATION_SCHEMA,
    ),
    "failures": JobFileKey(
        lambda at: at.whole(1, PROBE_FAILURES_MAX),
        "whole number",
        f"{PROBE_FAILURES}",
        "So many in a row mean no.",
        "live: {http: /healthz, failures: 5}",
        {"type": "integer", "minimum": 1, "maximum": PROBE_FAILURES_MAX},
    ),
}
READY: Final[Mapping[str, JobFileKey]] = {
    **PROBE,
    "within": JobFileKey(
        At.seconds,
        "duration",
        units.duration_of(REPLICA_READY_S),
        "An update waits so long for a new replica, then it stops.",
        "ready: {http: /healthz, within: 2m}",
        units.DURATION_SCHEMA,
    ),
}
KEYS: Final[Mapping[str, JobFileKey]] = {
    "ports": JobFileKey(
        ports,
        "list of names, or mapping of names to numbers",
        "none",
        "Ports that it listens at. A name alone, or with `free`: each worker gets a free one, in "
        "`HOLDFAST_PORT_NAME` and `{port.NAME}`. With a number a machine holds one worker.",
        "ports: {http: 8080, admin: free}",
        {
            "anyOf": [
                {
                    "type": "array",
                    "items": _NAME_SCHEMA,
                    "uniqueItems": True,
                    "maxItems": JOB_PORTS_MAX,
                },
                {
                    "type": "object",
                    "propertyNames": {"pattern": f"^{_NAME.pattern}$"},
                    "additionalProperties": {"anyOf": [{"const": _FREE}, _NUMBER_SCHEMA]},
                    "maxProperties": JOB_PORTS_MAX,
                },
            ]
        },
    ),
    "ready": JobFileKey(
        ready,
        "mapping, or `link`",
        "when `live` passes; without that, when it says so itself, or has run for three seconds",
        "When a replica is ready. For `mode: serve`.",
        "ready: {http: /healthz, within: 2m}",
        {"const": ProbeKind.LINK.value},
        READY,
        _KINDS,
    ),
    "live": JobFileKey(
        live,
        "mapping",
        "none",
        "Whether a worker still works: when the answer is no it is ended, and replaced.",
        "live: {http: /healthz, every: 10s, failures: 3}",
        {},
        PROBE,
        _KINDS,
    ),
}


def check(found: dict[str, Any], wrong: Callable[[str, str, str], Usage]) -> None:
    """That these keys fit together and to the others. A port that only one can be meant by is put
    in."""
    named: Mapping[str, int] = found.get("ports", {})
    if "ready" in found and found.get("mode") is not Mode.SERVE:
        why = "a worker of a training is ready when it has joined the others"
        raise wrong("`ready` is for jobs that serve", why, "mode: serve")
    for key in ("ready", "live"):
        if key in found:
            found[key] = _with_port(key, found[key], named, wrong)
    known = {variable_of(name) for name in named}
    for key in ("command", "ready", "live"):
        words = found.get(key, ())
        words = words.command if isinstance(words, Probe) else words
        for variable in sorted(ports_in(words) - known):
            name = variable.rpartition("HOLDFAST_PORT_")[2].lower()
            why = f"`ports` names: {', '.join(sorted(named)) or 'none'}"
            raise wrong(f"`{key}` wants a port {name} that is not there", why, f"ports: [{name}]")


def _with_port(
    key: str, probe: Probe, named: Mapping[str, int], wrong: Callable[[str, str, str], Usage]
) -> Probe:
    if probe.kind not in (ProbeKind.HTTP, ProbeKind.TCP):
        return probe
    if probe.port:
        if probe.port not in named and not probe.port.isdecimal():
            why = f"`ports` names: {', '.join(sorted(named)) or 'none'}"
            fix = f"ports: [{probe.port}]"
            raise wrong(f"`{key}` asks at a port {probe.port} that is not there", why, fix)
        return probe
    if len(named) != 1 and "http" not in named:
        why = f"there are {len(named)} in `ports`" if named else "there is no `ports`"
        example = f"{key}: {{http: {probe.path}, port: {min(named, default='8080')}}}"
        raise wrong(f"`{key}` does not say at which port it asks", why, example)
    return replace(probe, port="http" if "http" in named else next(iter(named)))


def plain(spec: JobSpec) -> dict[str, Any]:
    """These keys, as `ports`, `ready` and `live` read them."""
    found: dict[str, Any] = {}
    if spec.ports:
        found["ports"] = {name: number or _FREE for name, number in spec.ports.items()}
    for key, probe in (("ready", spec.ready), ("live", spec.live)):
        if probe is not None:
            found[key] = _plain(probe)
    return found


def _plain(probe: Probe) -> Any:
    if probe.kind is ProbeKind.LINK:
        return probe.kind.value
    asked: dict[str, Any] = {}
    if probe.kind is ProbeKind.HTTP:
        asked = {"http": probe.path, "port": probe.port}
    elif probe.kind is ProbeKind.TCP:
        asked = {"tcp": probe.port}
    else:
        asked = {"exec": list(probe.command)}
    asked["every"] = units.duration_of(probe.every_s)
    asked["timeout"] = units.duration_of(probe.timeout_s)
    asked["failures"] = probe.failures
    if probe.within_s is not None:
        asked["within"] = units.duration_of(probe.within_s)
    return asked

"""`ports`, `ready` and `live` of a job file."""

from __future__ import annotations

import pytest

from holdfast.control.decide.spec import JobSpec
from holdfast.control.jobfile import reading as jobfile
from holdfast.wire.errors import Usage
from holdfast.wire.probes import Probe, ProbeKind, with_ports

WEB = "name: web\nmode: serve\ncommand: serve --port {port.http}\n"


def read(more: str) -> JobSpec:
    return jobfile.parse(WEB + more, "job.yaml")


def test_ports_are_named_or_numbered() -> None:
    assert read("ports: [http]").ports == {"http": 0}
    assert read("ports: {http: 8080, admin-2: free}").ports == {"http": 8080, "admin-2": 0}


@pytest.mark.parametrize(
    ("lines", "probe"),
    [
        ("ready: {http: /ok}", Probe(ProbeKind.HTTP, "http", "/ok")),
        ("ready: {http: /ok, port: 99}", Probe(ProbeKind.HTTP, "99", "/ok")),
        ("ready: {tcp: http, within: 5m}", Probe(ProbeKind.TCP, "http", within_s=300.0)),
        (
            'ready: {exec: "check {port.http}", failures: 1}',
            Probe(ProbeKind.EXEC, command=("check", "{port.http}"), failures=1),
        ),
        ("ready: link", Probe(ProbeKind.LINK)),
    ],
)
def test_each_kind_of_probe_is_read_and_written(lines: str, probe: Probe) -> None:
    spec = read(f"ports: [http, other]\n{lines}")
    assert spec.ready == probe
    assert jobfile.parse(jobfile.dump(spec), "again") == spec


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("ports: 8080", "`ports` should be names"),
        ("ports: [8080]", "the name of a port"),
        ("ports: {http: 0}", "a number from 1 to 65535, or `free`"),
        ("ports: {http: 80, more: 80}", "different ports"),
        ("ports: [web-1, http, WEB_1]", "differ in more than case"),
        ("", "wants a port http that is not there"),
        ("ports: [http]\nready: yes", "one of {http: /PATH}"),
        ("ports: [http]\nready: {http: /, tcp: http}", "one of {http: /PATH}"),
        ("ports: [http]\nready: {http: healthz}", "a path, such as /healthz"),
        ("ports: [http]\nready: {tcp: htp}", "asks at a port htp that is not there"),
        ("ports: [http]\nready: {tcp: http, every: 1ms}", "from 0.1s"),
        ("ports: [http]\nready: {tcp: http, timeout: 2h}", "to 5m"),
        ("ports: [http]\nlive: {tcp: http, failures: 0}", "from 1 to 1000"),
        ("ports: [http]\nlive: {tcp: http, within: 3s}", "`live.within` is not a key"),
        ("ports: [http]\nlive: link", "one of {http: /PATH}"),
        ('ports: [http]\nlive: {exec: "x {port.db}"}', "wants a port db that is not there"),
    ],
)
def test_a_mistake_is_named_with_its_line(more: str, said: str) -> None:
    with pytest.raises(Usage) as raised:
        read(more)
    assert said in str(raised.value)
    assert "job.yaml, line " in str(raised.value)


def test_a_probe_must_say_which_of_several_ports() -> None:
    text = "name: w\nmode: serve\ncommand: x\nports: [a, b]\nready: {http: /}"
    with pytest.raises(Usage, match="does not say at which port"):
        jobfile.parse(text, "job.yaml")


def test_a_training_has_no_ready_probe() -> None:
    with pytest.raises(Usage, match="`ready` is for jobs that serve"):
        jobfile.parse("name: t\ncommand: x\nready: {tcp: 80}", "job.yaml")


def test_ports_are_put_into_the_words_of_a_command_in_each_spelling() -> None:
    words = ("-p{port.my-web}", "$HOLDFAST_PORT_MY_WEB", "${HOLDFAST_PORT_MY_WEB}x", "{port.no}")
    assert with_ports(words, {"my-web": 80}) == ("-p80", "80", "80x", "{port.no}")

"""Job files: what is read, what is refused, and how the refusal helps."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.control.decide import units
from holdfast.control.decide.spec import (
    CheckpointPolicy,
    JobSpec,
    Mode,
    Network,
    Resources,
    RestartPolicy,
    Trigger,
    TriggerStart,
)
from holdfast.control.decide.triggers import TRIGGER_NAME_CHARACTERS_MAX
from holdfast.control.jobfile import reading as jobfile
from holdfast.control.jobfile import schema as jobfile_schema
from holdfast.control.jobfile import tree as jobfile_tree
from holdfast.control.jobfile.tree import JOB_FILE_BYTES_MAX
from holdfast.wire.errors import Usage
from holdfast.wire.probes import Probe, ProbeKind

WHOLE = """\
name: mnist-large
queue: research
priority: 5
bundle: mnist@3
command: python train.py --data 'my folder'
lanes: 16
workers: {min: 2, max: 8}
resources:
  cpu: 1.5
  memory: 4GiB
  gpu: 1
  disk: 20GB
mode: local
checkpoint:
  every_steps: 500
  every: 5m
  keep: 2
restart:
  failures_max: 5
  backoff: 2s
  backoff_max: 1m30s
  forgiven_after: 1h
settings:
  lr: 0.010
  name: yes
  note: "a: b"
deadline: 2h
silence: 90s
network: trusted
ports: {http: 8080, admin: free}
live: {http: /alive, every: 1s, timeout: 500ms, failures: 4}
env: {STAGE: test, LEVEL: 010}
secrets: {TOKEN: hub-token}
requirements: [numpy==2.1, einops]
logs: {topic: true}
on: {topic: orders, every: [10000 records, 5m], filter: value.a > 1, start: latest, at_once: 2}
"""


def test_a_job_may_tell_its_workers_to_share_no_memory() -> None:
    text = "name: a\ncommand: x\nenv: {HOLDFAST_EXCHANGE: tcp}\n"
    assert jobfile.parse(text, "job.yaml").env == {"HOLDFAST_EXCHANGE": "tcp"}


def test_every_key_is_read() -> None:
    assert jobfile.parse(WHOLE, "job.yaml") == JobSpec(
        name="mnist-large",
        command=("python", "train.py", "--data", "my folder"),
        bundle="mnist@3",
        queue="research",
        priority=5,
        lanes=16,
        workers_min=2,
        workers_max=8,
        resources=Resources(1.5, 4 * 1024**3, 1, 20 * 10**9),
        mode=Mode.LOCAL,
        checkpoint=CheckpointPolicy(500, 300.0, 2),
        restart=RestartPolicy(5, 2.0, 90.0, 3_600.0),
        settings={"lr": "0.010", "name": "yes", "note": "a: b"},
        deadline_s=7_200.0,
        silence_s=90.0,
        network=Network.TRUSTED,
        ports={"http": 8080, "admin": 0},
        live=Probe(ProbeKind.HTTP, "http", "/alive", (), 1.0, 0.5, 4),
        env={"STAGE": "test", "LEVEL": "010"},
        secrets={"TOKEN": "hub-token"},
        requirements=("numpy==2.1", "einops"),
        log_topic=True,
        on=Trigger("orders", 10_000, 300.0, "value.a > 1", TriggerStart.LATEST, 2),
    )


def test_this_test_file_names_every_key_that_there_is() -> None:
    named = {line.split(":")[0] for line in WHOLE.splitlines() if line[0] != " "}
    assert named | {"ready"} == set(jobfile.KEYS)  # which is for jobs that serve: test_probes


def test_a_name_and_a_command_are_enough() -> None:
    spec = jobfile.parse("name: a\ncommand: [python, -c, pass]\n", "job.yaml")
    assert spec == JobSpec("a", ("python", "-c", "pass"))


def test_one_number_of_workers_is_both_bounds_and_the_lanes() -> None:
    spec = jobfile.parse("name: a\ncommand: x\nworkers: 4\n", "job.yaml")
    assert (spec.workers_min, spec.workers_max, spec.lanes) == (4, 4, 4)


def test_steps_alone_mean_no_checkpoints_by_time() -> None:
    text = "name: a\ncommand: x\ncheckpoint: {every_steps: 10}\n"
    assert jobfile.parse(text, "job.yaml").checkpoint == CheckpointPolicy(10, None)
    text = "name: a\ncommand: x\ncheckpoint: {every: never}\n"
    assert jobfile.parse(text, "job.yaml").checkpoint == CheckpointPolicy(None, None)


def test_no_key_of_a_job_file_is_taken_for_another_word_of_one_beside_it() -> None:
    known = set(jobfile_schema.json_schema()["properties"])
    for key, others in jobfile_tree.SYNONYMS.items():
        assert key not in others
        assert not (key in known and others & known), key


HEAD = "name: a\ncommand: x\n"
# What is added to two good lines, and what the answer must say.
MISTAKES = {
    "prioritee: 3": ("line 3", "`prioritee` is not a key", "did you mean `priority`?"),
    "workers: {mni: 3}": ("line 3", "`workers.mni`", "did you mean `min`?"),
    "resources:\n  mem: 4GiB": ("line 4", "`resources.mem`", "did you mean `memory`?"),
    "resources:\n  gpus: 1": ("line 4", "did you mean `gpu`?"),
    "checkpoint: {evry: 5m}": ("did you mean `every`?",),
    "environment: {A: b}": ("did you mean `env`?",),
    "retries: 3": ("did you mean `restart`?",),
    "replicas: 3": ("did you mean `workers`?",),
    "image: python": ("did you mean `bundle`?",),
    "cpus: 2": ("did you mean `resources`?",),
    "resources: {cores: 2}": ("did you mean `cpu`?",),
    "liveness-probe: {}": ("did you mean `live`?",),
    "xyzzy: 1": ("line 3", "known here: name, command"),
    "name: b": ("line 3", "`name` is given twice", "line 1", "remove one"),
    "resources: {cpu: 1, cpu: 2}": ("`resources.cpu` is given twice",),
    "settings: {lr: 1, lr: 2}": ("`settings.lr` is given twice",),
    "priority: high": ("line 3", "`priority` should be a whole number", "it is 'high'"),
    "priority: 1.5": ("a whole number", "it is '1.5'"),
    "priority: 99999": ("from -1000 to 1000",),
    "priority:": ("`priority` should be", "it is empty"),
    "priority: [1]": ("it is a list",),
    "queue: 7": ("`queue` should be text", "put it in quotes: queue: '7'"),
    "queue: yes": ("put it in quotes: queue: 'yes'",),
    "queue: ../up": ("`queue` should be a name",),
    "lanes: 0": ("`lanes` should be a whole number from 1",),
    "lanes: 2\nworkers: 4": ("fewer lanes than workers", "fix: lanes: 4, or more"),
    "workers: {min: 5, max: 3}": ("max (3) is below min (5)",),
    "workers: {min: 0}": ("`workers.min` should be a whole number from 1",),
    "workers: many": ("`workers` should be a whole number",),
    "workers: [1, 2]": ("`workers` should be a mapping with some of: min, max",),
    "resources: {memory: 4}": ("a size, such as", "say the unit: resources.memory: 4GiB"),
    "resources: {memory: 4G}": ("a size, such as",),
    "resources: {memory: 0.3B}": ("a size, such as",),
    "resources: {cpu: 0.0001}": ("in thousandths",),
    "resources: {cpu: -1}": ("number of cores",),
    "resources: {cpu: .inf}": ("number of cores",),
    "resources: {gpu: 0.5}": ("`resources.gpu` should be a whole number",),
    "resources: {cpu: 0}": ("something that a worker needs",),
    "resources: 4": ("a mapping with some of: cpu, memory, gpu",),
    "mode: synk": ("one of sync, local, async", "did you mean `sync`?"),
    "deadline: 120": ("a duration", "say the unit: deadline: 120s"),
    "deadline: soon": ("a duration, such as 90s",),
    "deadline: 0s": ("from 1ms",),
    "deadline: 9999999d": ("to 3650d",),
    "settings: [1]": ("`settings` should be a mapping",),
    "settings: {lr: [1]}": ("`settings.lr` should be a single value",),
    "settings: {'a b': 1}": ("`settings.a b` should be named by letters",),
    "env: [A]": ("`env` should be a mapping",),
    "env: {HOLDFAST_MODE: x}": ("`env.HOLDFAST_MODE` should be another", "set by Holdfast"),
    "env: {TMPDIR: x}": ("set by Holdfast",),
    "env: {a-b: x}": ("`env.a-b` should be named as an environment variable",),
    "env: {A: [1]}": ("`env.A` should be a single value",),
    'env: {A: "\\0"}': ("`env.A` should be text that a process can be given",),
    f"env: {{A: {'x' * 17_000}}}": ("at most 64 variables with 16384 bytes",),
    "secrets: {A: 'b c'}": ("`secrets.A` should be a name",),
    "secrets: {HOLDFAST_A: b}": ("set by Holdfast",),
    "env: {A: x}\nsecrets: {A: b}": ("A is in `env` and in `secrets`", "remove one"),
    "notify: [ops]": ("`notify` is not a key of a job file",),
    "? [a]\n: 1": ("a key must be a plain word",),
    "<<: {priority: 1}": ("`<<` is not a key",),
    "queue: 'a": ("this is not YAML",),
    "queue: a\tb: c": ("line 3",),
    "---\nname: b": ("this is not YAML", "another document"),
    "settings: &a {x: *a}": ("should be a single value",),
}


@pytest.mark.parametrize("added", MISTAKES)
def test_a_mistake_is_named_with_its_place_and_its_remedy(added: str) -> None:
    with pytest.raises(Usage) as caught:
        jobfile.parse(f"{HEAD}{added}\n", "job.yaml")
    for part in ("job.yaml", *MISTAKES[added]):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "is empty"),
        ("# nothing\n", "is empty"),
        ("name: a\n", "`command` is missing"),
        ("command: x\n", "`name` is missing"),
        ("- a\n", "a mapping"),
        ("name: a\ncommand: ''\n", "`command` should be a command line"),
        ("name: a\ncommand: []\n", "`command` should be a command line"),
        ("name: a\ncommand: echo 'a\n", "No closing quotation"),
        ("name: .a\ncommand: x\n", "`name` should be a name"),
        ("name: a/b\ncommand: x\n", "`name` should be a name"),
        (f"name: {'a' * 51}\ncommand: x\n", "at most 50"),
        ("name: a\ncommand: x\n#" + "y" * JOB_FILE_BYTES_MAX, "too large"),
        ("[" * 5_000, "this is not YAML"),
        ("name: a\ncommand: \x00\n", "this is not YAML"),
    ],
)
def test_a_file_that_is_no_job_is_refused(text: str, part: str) -> None:
    with pytest.raises(Usage) as caught:
        jobfile.parse(text, "job.yaml")
    assert part in str(caught.value)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=200))
def test_no_text_gives_anything_but_a_job_or_a_usage_error(text: str) -> None:
    try:
        jobfile.parse(f"{HEAD}{text}", "job.yaml")
    except Usage as error:
        assert "job.yaml" in str(error)


names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,30}", fullmatch=True)
words = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
variables = st.from_regex(r"[A-Za-z0-9_]{0,9}", fullmatch=True)
seconds = st.floats(0.001, 1e8) | st.integers(1, 10**7).map(float)


sizes = st.integers(0, 2**50)
# As a line is without its margins, and not in the way of an option that is refused.
lines = words.map(lambda word: f"a{word}".split("\n")[0].strip()).filter(bool)


def _may_be(text: str) -> bool:
    """Whether a process can have it in its environment."""
    return "\0" not in text


@st.composite
def specs(draw: st.DrawFn) -> JobSpec:
    least = draw(st.integers(1, 100))
    most = draw(st.integers(least, 200))
    cpu = draw(st.integers(1, 64_000)) / 1_000
    return JobSpec(
        name=draw(names.filter(_is_text)),
        command=(draw(words.filter(bool)), *draw(st.lists(words, max_size=3))),
        bundle=draw(words),
        queue=draw(names.filter(_is_text)),
        priority=draw(st.integers(-1_000, 1_000)),
        lanes=draw(st.integers(most, 400)),
        workers_min=least,
        workers_max=most,
        resources=Resources(cpu, draw(sizes), draw(st.integers(0, 16)), draw(sizes)),
        mode=draw(st.sampled_from(Mode)),
        checkpoint=CheckpointPolicy(
            draw(st.none() | st.integers(1, 10**9)),
            draw(st.none() | seconds),
            draw(st.integers(1, 99)),
        ),
        restart=RestartPolicy(
            draw(st.integers(0, 99)), draw(st.just(0.0) | seconds), draw(seconds), draw(seconds)
        ),
        settings=draw(
            st.dictionaries(
                st.from_regex(r"[A-Za-z_][\w.-]{0,9}", fullmatch=True).filter(str.isascii),
                words,
                max_size=4,
            )
        ),
        deadline_s=draw(st.none() | seconds),
        silence_s=draw(st.none() | seconds),
        network=draw(st.sampled_from(Network)),
        env=draw(st.dictionaries(variables.map("E{}".format), words.filter(_may_be), max_size=3)),
        secrets=draw(
            st.dictionaries(variables.map("S{}".format), names.filter(_is_text), max_size=3)
        ),
        requirements=tuple(draw(st.lists(lines, max_size=3))),
        log_topic=draw(st.booleans()),
    )


def _is_text(name: str) -> bool:
    return not name.endswith("\n")


@settings(max_examples=100, deadline=None)
@given(specs())
def test_a_job_that_is_written_and_read_is_the_same(spec: JobSpec) -> None:
    assert jobfile.parse(jobfile.dump(spec), "job.yaml") == spec


@pytest.mark.parametrize(
    ("text", "value"),
    [("90s", 90.0), ("5m", 300.0), ("1h30m", 5_400.0), ("250ms", 0.25), ("1.5d", 129_600.0)],
)
def test_durations_are_read(text: str, value: float) -> None:
    assert units.seconds_of(text) == value


@pytest.mark.parametrize("text", ["", "5", "m", "5 m", "-5m", "5M", "5m!", "\u0665m", "1e3s"])
def test_what_is_no_duration_is_not_read(text: str) -> None:
    assert units.seconds_of(text) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [("4GiB", 4 * 1024**3), ("1.5 KiB", 1_536), ("2GB", 2 * 10**9), ("7B", 7), ("0B", 0)],
)
def test_sizes_are_read(text: str, value: int) -> None:
    assert units.bytes_of(text) == value


@pytest.mark.parametrize("text", ["", "4", "4G", "4gib", "-1B", "0.5B", "\u0664GiB"])
def test_what_is_no_size_is_not_read(text: str) -> None:
    assert units.bytes_of(text) is None


def test_a_trigger_is_read_and_written_back() -> None:
    head = "name: etl\ncommand: python etl.py\n"
    for text, on in (
        ("on: {topic: orders, every: 10000 records}", Trigger("orders", 10_000)),
        ("on: {topic: orders, every: 5m}", Trigger("orders", None, 300.0)),
        (
            "on: {topic: a.b, every: [1 record, 90s], filter: value.a > 1,"
            " start: latest, at_once: 3}",
            Trigger("a.b", 1, 90.0, "value.a > 1", TriggerStart.LATEST, 3),
        ),
    ):
        spec = jobfile.parse(head + text, "job.yaml")
        assert spec.on == on
        assert jobfile.parse(jobfile.dump(spec), "again") == spec


@pytest.mark.parametrize(
    ("on", "said"),
    [
        ("{topic: orders}", "`topic` and `every`"),
        ("{topic: orders, every: 10000}", "every: 10000 records"),
        ("{topic: orders, every: 0 records}", "at least 1 record"),
        ("{topic: orders, every: [5m, 6m]}", "one number of records and one duration"),
        ("{topic: 'or ders', every: 5m}", "name of a topic"),
        ("{topic: orders, every: 5m, filter: value.a >}", "its end"),
        ("{topic: orders, every: 5m, start: never}", "earliest, latest"),
        ("{topic: orders, interval: 5m}", "did you mean `every`?"),
    ],
)
def test_a_wrong_trigger_is_refused_with_what_it_should_be(on: str, said: str) -> None:
    with pytest.raises(Usage) as caught:
        jobfile.parse(f"name: etl\ncommand: x\non: {on}\n", "job.yaml")
    assert said in str(caught.value), str(caught.value)


def test_a_trigger_neither_serves_nor_has_a_name_without_room_for_a_number() -> None:
    on = "on: {topic: orders, every: 5m}"
    with pytest.raises(Usage, match="mode: serve"):
        jobfile.parse(f"name: etl\ncommand: x\nmode: serve\n{on}\n", "job.yaml")
    long = "x" * (TRIGGER_NAME_CHARACTERS_MAX + 1)
    with pytest.raises(Usage, match="too long for a trigger"):
        jobfile.parse(f"name: {long}\ncommand: x\n{on}\n", "job.yaml")

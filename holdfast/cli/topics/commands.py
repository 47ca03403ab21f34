"""`holdfast topics`: topics and groups, made, looked at, changed and deleted."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from holdfast.cli import output
from holdfast.cli.options import ClusterOption, JsonOption
from holdfast.cli.topics import records, servers
from holdfast.cli.topics.opening import (
    AddressOption,
    TopicArgument,
    check_known,
    open_topics,
    pairs,
    time_ms,
)
from holdfast.wire.errors import Usage

if TYPE_CHECKING:
    from holdfast.topics import TopicSummary
    from holdfast.topics.heat import TopicHeat

EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast topics create clicks --partitions 8[/]

  [cyan]cat clicks.txt | holdfast topics produce clicks --key-separator :[/]

  [cyan]holdfast topics tail clicks -f[/]

  [cyan]holdfast topics describe clicks[/]                  the hottest partition and keys too

  [cyan]holdfast topics groups counters[/]                  how far behind, by partition

  [cyan]holdfast topics reset counters clicks --to 1h[/]    read the last hour again

  [cyan]holdfast topics list --address kafka://h1,h2?prefix=team.[/]

  [cyan]holdfast topics serve --data ./topics[/]            a broker alone, for any Kafka client


Without [cyan]--address[/] the topics are the cluster's. Its own broker is started when something
uses topics; [cyan]holdfast up --topics kafka://…[/] names a Kafka that you run.
"""
CREATE_EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast topics create clicks --partitions 8[/]

  [cyan]holdfast topics create users --set cleanup.policy=compact[/]    the last record of each key

  [cyan]holdfast topics create clicks --copies 3 --min-insync 2[/]      what a real cluster has
"""
ALTER_EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast topics alter clicks --set retention.ms=3600000[/]

  [cyan]holdfast topics alter clicks --unset retention.ms[/]            as the broker has it

  [cyan]holdfast topics alter clicks --partitions 16[/]                 keys then go to others
"""
RESET_EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast topics reset counters clicks --to earliest[/]      all again

  [cyan]holdfast topics reset counters clicks --to latest[/]        nothing of what is there

  [cyan]holdfast topics reset counters clicks --to 2026-01-31T12:00[/]

  [cyan]holdfast topics reset counters clicks --offset 0=120 --offset 1=98[/]
"""

app = typer.Typer(
    help="Topics: partitioned, durable, ordered logs that parts of the system write and read.",
    epilog=EXAMPLES,
    no_args_is_help=True,
    rich_markup_mode="rich",
)

SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting of the topic.")
]
GroupArgument = Annotated[str, typer.Argument(metavar="GROUP", help="The group's name.")]

# What a topic on a real cluster has: one broker may die, and nothing is lost.
_COPIES: Final = 3
_MIN_INSYNC: Final = 2
_KEY_CHARACTERS_MAX: Final = 40

app.command(epilog=servers.SERVE_EXAMPLES)(servers.serve)
app.command(epilog=servers.SALVAGE_EXAMPLES)(servers.salvage)
app.command(epilog=records.PRODUCE_EXAMPLES)(records.produce)
app.command(epilog=records.TAIL_EXAMPLES)(records.tail)


@app.command("list")
def list_(
    address: AddressOption = "", cluster: ClusterOption = None, as_json: JsonOption = False
) -> None:
    """Which topics there are, with their partitions, copies and records."""
    with open_topics(address, cluster) as found:
        admin = found.topics.admin
        known = [admin.describe(name) for name in admin.list_topics()]
    if as_json:
        output.show_json({"topics": [_fields(one) for one in known]})
        return
    if not known:
        output.out().print("there are no topics: holdfast topics create NAME")
        return
    rows = [(one.name, one.partitions, one.copies, _records(one)) for one in known]
    columns = ["topic", "partitions", "copies", "records"]
    output.show_table(columns, rows, right=columns[1:])


@app.command(epilog=CREATE_EXAMPLES)
def create(
    topic: TopicArgument,
    partitions: Annotated[
        int, typer.Option(min=1, help="How many; as many members of a group may read at once.")
    ] = 1,
    copies: Annotated[
        int | None, typer.Option(min=1, help="Of each partition; 3 on a real cluster.")
    ] = None,
    min_insync: Annotated[
        int | None,
        typer.Option(min=1, help="Copies that have a record before it counts; 2 of 3."),
    ] = None,
    settings: SetOption = None,
    address: AddressOption = "",
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a topic."""
    configs = pairs(settings, "--set")
    with open_topics(address, cluster, wants=True) as found:
        made = found.topics.admin.create(topic, partitions, copies, min_insync, configs)
    if as_json:
        output.show_json(_fields(made))
    else:
        many = "1 partition" if partitions == 1 else f"{partitions} partitions"
        output.done(f"topic {topic} is made: {many}", f"holdfast topics produce {topic}")
    if not found.own:
        _warn_of_copies(made)


def _warn_of_copies(made: TopicSummary) -> None:
    insync = int(made.configs.get("min.insync.replicas", "1"))
    if made.copies >= _COPIES and insync >= _MIN_INSYNC:
        return
    copies = "1 copy" if made.copies == 1 else f"{made.copies} copies"
    output.err().print(
        f"[yellow]{copies}, {insync} in sync:[/] a broker's death may lose records or stop writing;"
        f" --copies {_COPIES} --min-insync {_MIN_INSYNC} on a cluster of {_COPIES} brokers does not"
    )


@app.command()
def describe(
    topic: TopicArgument,
    sample: Annotated[
        int, typer.Option(min=0, max=1_000_000, help="How many of the last records are looked at.")
    ] = 10_000,
    address: AddressOption = "",
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """A topic's partitions and settings, its hottest partition, and its hottest keys.

    They are those of the last records of each partition ([cyan]--sample[/]).
    """
    from holdfast.topics.heat import measure

    with open_topics(address, cluster) as found:
        check_known(found.topics, topic)
        known = found.topics.admin.describe(topic)
        heat = measure(found.topics, known, sample)
    if as_json:
        output.show_json({**_fields(known), "heat": heat.fields()})
        return
    output.show_facts(
        [
            ("topic", known.name),
            ("partitions", known.partitions),
            ("copies", known.copies),
            ("records", _records(known)),
            *known.configs.items(),
        ]
    )
    shares = {one.partition: one for one in heat.partitions}
    rows = [
        (
            part,
            first,
            after,
            after - first,
            f"{shares[part].share:.0%}" if part in shares else "-",
            "hottest" if heat.hottest == part and known.partitions > 1 else "",
        )
        for part, (first, after) in known.offsets.items()
    ]
    columns = ["partition", "first", "next", "records", "of the last", ""]
    output.show_table(columns, rows, right=columns[:5])
    _show_keys(heat)


def _show_keys(heat: TopicHeat) -> None:
    if not heat.keys:
        return
    rows = [(_key(one.key), one.partition, one.records, f"{one.share:.0%}") for one in heat.keys]
    output.out().print(f"\n[dim]hottest keys of the last {heat.records} records[/]")
    columns = ["key", "partition", "records", "share"]
    output.show_table(columns, rows, right=columns[1:])


def _key(key: bytes) -> str:
    text = key.decode(errors="replace")
    return text if len(text) <= _KEY_CHARACTERS_MAX else f"{text[: _KEY_CHARACTERS_MAX - 1]}…"


@app.command()
def delete(
    topic: TopicArgument,
    address: AddressOption = "",
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete a topic with all its records."""
    with open_topics(address, cluster) as found:
        check_known(found.topics, topic)
        found.topics.admin.delete(topic)
    _report(f"topic {topic} is deleted", {"deleted": topic}, as_json=as_json)


@app.command(epilog=ALTER_EXAMPLES)
def alter(
    topic: TopicArgument,
    partitions: Annotated[int | None, typer.Option(min=1, help="How many; never fewer.")] = None,
    settings: SetOption = None,
    unset: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A setting that the broker decides.")
    ] = None,
    address: AddressOption = "",
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change a topic's settings, or give it more partitions."""
    given = pairs(settings, "--set")
    if both := sorted(set(given) & set(unset or ())):
        raise Usage(f"--set and --unset of {both[0]} at once", fix="give one of the two")
    changes: dict[str, str | None] = {**given, **dict.fromkeys(unset or ())}
    if not changes and partitions is None:
        raise Usage(
            f"nothing of topic {topic} is to be changed",
            fix=f"holdfast topics alter {topic} --set retention.ms=3600000",
        )
    with open_topics(address, cluster) as found:
        check_known(found.topics, topic)
        found.topics.admin.alter(topic, partitions=partitions, configs=changes)
        known = found.topics.admin.describe(topic)
    _report(f"topic {topic} is changed", _fields(known), as_json=as_json)


@app.command()
def groups(
    group: Annotated[
        str | None, typer.Argument(metavar="GROUP", help="Only this one, by partition.")
    ] = None,
    address: AddressOption = "",
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Who reads, and how far behind: all groups, or one by partition."""
    from holdfast.cli.options import missing

    with open_topics(address, cluster) as found:
        admin = found.topics.admin
        known = {one.name: one for one in admin.groups()}
        if group is not None and group not in known:
            raise missing("group", group, known, "holdfast topics groups")
        chosen = [known[group]] if group is not None else list(known.values())
        lags = {one.name: admin.lag(one.name) for one in chosen}
    if as_json:
        listed = [
            {**asdict(one), "lag": [asdict(each) for each in lags[one.name]]} for one in chosen
        ]
        output.show_json({"groups": listed})
        return
    if group is None:
        totals = {name: sum(max(0, each.lag) for each in found) for name, found in lags.items()}
        rows: list[tuple[Any, ...]] = [
            (one.name, one.state, len(one.members), totals[one.name]) for one in chosen
        ]
        columns = ["group", "state", "members", "lag"]
        output.show_table(columns, rows, right=columns[2:])
        return
    rows = [
        (each.topic, each.partition, _committed(each.committed), each.end, _lag(each.lag))
        for each in lags[group]
    ]
    columns = ["topic", "partition", "committed", "end", "lag"]
    output.show_table(columns, rows, right=columns[1:])
    members = len(known[group].members)
    many = "1 member" if members == 1 else f"{members} members"
    output.note(f"{known[group].state}, {many}")


@app.command(epilog=RESET_EXAMPLES)
def reset(
    group: GroupArgument,
    topic: TopicArgument,
    to: Annotated[
        str, typer.Option(help="earliest, latest, a time, or how long ago (15m, 2h, 1d).")
    ] = "",
    offset: Annotated[
        list[str] | None, typer.Option(metavar="PARTITION=OFFSET", help="Where it goes on.")
    ] = None,
    address: AddressOption = "",
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set from where a group without members goes on in a topic."""
    if bool(to) == bool(offset):
        raise Usage(
            "a group is reset to a place, or to offsets",
            fix=f"holdfast topics reset {group} {topic} --to earliest",
        )
    with open_topics(address, cluster) as found:
        check_known(found.topics, topic)
        admin = found.topics.admin
        if offset:
            done = admin.reset(group, topic, _offsets(offset))
        elif to in ("earliest", "latest"):
            done = admin.reset(group, topic, "earliest" if to == "earliest" else "latest")
        else:
            done = admin.reset(group, topic, time_ms(to, "--to"))
    if as_json:
        output.show_json({"group": group, "positions": [one._asdict() for one in done]})
        return
    output.show_table(
        ["topic", "partition", "goes on at"],
        [(one.topic, one.partition, one.offset) for one in done],
        right=["partition", "goes on at"],
    )


def _offsets(given: list[str]) -> dict[int, int]:
    found = {}
    for part, at in pairs(given, "--offset").items():
        if not part.isdecimal() or not at.isdecimal():
            raise Usage(f"--offset {part}={at} is not PARTITION=OFFSET", fix="--offset 0=120")
        found[int(part)] = int(at)
    return found


def _lag(lag: int) -> object:
    return lag if lag >= 0 else f"{-lag} beyond the end"


def _committed(offset: int | None) -> object:
    return "-" if offset is None else offset


def _records(topic: TopicSummary) -> int:
    return sum(after - first for first, after in topic.offsets.values())


def _fields(topic: TopicSummary) -> dict[str, Any]:
    offsets = {
        str(part): {"first": first, "next": after} for part, (first, after) in topic.offsets.items()
    }
    return {**asdict(topic), "offsets": offsets}


def _report(words: str, document: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        output.show_json(document)
    else:
        output.done(words)

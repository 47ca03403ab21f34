"""How models, versions, aliases and differences look: as documents, and for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from holdfast.cli import output
from holdfast.client import texts

if TYPE_CHECKING:
    from holdfast.models.catalogue import Catalogue
    from holdfast.models.differences import Difference
    from holdfast.models.records import Alias, Version

# Tensors that people are shown; `--json` has them all.
_TENSORS_SHOWN: Final = 20
_MOVES_SHOWN: Final = 10


def model_rows(catalogue: Catalogue) -> list[dict[str, Any]]:
    rows = []
    for name, model in catalogue.models().items():
        versions = catalogue.versions(name)
        newest = versions[-1]
        rows.append(
            {
                "model": name,
                "versions": sum(not version.retired for version in versions),
                "retired": sum(bool(version.retired) for version in versions),
                "newest": model.newest,
                "aliases": {key: held.version for key, held in catalogue.aliases(name).items()},
                "kind": newest.kind.value,
                "size_bytes": newest.size_bytes,
                "published_s": newest.published_s,
                "changes": model.changes,
                "last": model.last,
            }
        )
    return rows


def show_models(rows: list[dict[str, Any]]) -> None:
    if not rows:
        output.note("no models. Publish one: run.publish(model, NAME, example=...) in a job")
        output.note("or: holdfast models publish --help")
        return
    shown = [
        (
            row["model"],
            row["versions"],
            row["newest"],
            row["kind"],
            texts.size(row["size_bytes"]),
            f"{texts.ago(row['published_s'])} ago",
            _aliases(row["aliases"]) or "-",
        )
        for row in rows
    ]
    columns = ["model", "versions", "newest", "kind", "size", "published", "aliases"]
    output.show_table(columns, shown, right=("versions", "newest", "size"))


def model_row(catalogue: Catalogue, name: str) -> dict[str, Any]:
    model = catalogue.model(name)
    if model is None:
        raise catalogue.no_model(name)
    return {
        "model": name,
        "newest": model.newest,
        "changes": model.changes,
        "last": model.last,
        "versions": [
            {
                "version": version.number,
                "kind": version.kind.value,
                "size_bytes": version.size_bytes,
                "published_s": version.published_s,
                "by": version.by,
                "job": version.job,
                "step": version.step,
                "metrics": dict(version.metrics),
                "retired": version.retired,
            }
            for version in reversed(catalogue.versions(name))
        ],
        "aliases": {key: asdict(held) for key, held in catalogue.aliases(name).items()},
    }


def show_model(row: dict[str, Any]) -> None:
    names: dict[int, list[str]] = {}
    for alias, held in row["aliases"].items():
        names.setdefault(held["version"], []).append(alias)
    output.show_table(
        ["version", "aliases", "kind", "size", "published", "from", "metrics"],
        [
            (
                version["version"],
                ", ".join(names.get(version["version"], ())),
                Text("retired", style="dim") if version["retired"] else version["kind"],
                texts.size(version["size_bytes"]),
                f"{texts.ago(version['published_s'])} ago",
                _origin(version),
                _metrics(version["metrics"]),
            )
            for version in row["versions"]
        ],
        right=("version", "size"),
    )
    for alias, held in row["aliases"].items():
        output.note(f"{alias}: {_move(held['moves'][-1])}" if held["moves"] else alias)


def version_row(catalogue: Catalogue, version: Version, how: str) -> dict[str, Any]:
    from holdfast.wire.plain import plain_of

    aliases = catalogue.aliases(version.model)
    return {
        **plain_of(version),
        "size_bytes": version.size_bytes,
        "resolved_by": how,
        "aliases": [key for key, held in aliases.items() if held.version == version.number],
    }


def show_version(row: dict[str, Any]) -> None:
    signature = row["signature"]
    output.show_facts(
        [
            ("version", f"{row['model']}@{row['number']} ({row['resolved_by']})"),
            ("aliases", ", ".join(row["aliases"])),
            ("retired", row["retired"]),
            ("kind", row["kind"]),
            ("takes", _tensors(signature["inputs"])),
            ("gives", _tensors(signature["outputs"])),
            ("batches", "yes" if signature["batches"] else "no: each request for itself"),
            ("entry", row["entry"]),
            ("arguments", row["arguments"] or ""),
            ("bundle", row["bundle"][:19]),
            ("published", f"{texts.ago(row['published_s'])} ago by {row['by']}"),
            ("job", "" if not row["job"] else f"{row['job']}, step {row['step']:,}"),
            ("metrics", _metrics(row["metrics"])),
            *(
                ("file", f"{name}  {texts.size(part['size_bytes'])}  {part['digest'][:19]}")
                for name, part in row["files"].items()
            ),
        ]
    )


def show_alias(model: str, alias: str, held: Alias, as_json: bool) -> None:
    document = {"model": model, "alias": alias, **asdict(held)}
    if as_json:
        output.show_json(document)
        return
    output.out().print(f"{model}@{alias} is version {held.version}", markup=False)
    for move in document["moves"][-_MOVES_SHOWN:]:
        output.note(f"  {_move(move)}")


def difference_document(one: Version, other: Version, found: Difference) -> dict[str, Any]:
    return {
        "before": f"{one.model}@{one.number}",
        "after": f"{other.model}@{other.number}",
        "same": found.none,
        **asdict(found),
    }


def show_difference(one: Version, other: Version, found: Difference) -> None:
    names = f"{one.model}@{one.number}", f"{other.model}@{other.number}"
    if found.none and not found.metrics:
        output.out().print(f"{names[0]} and {names[1]} are the same", markup=False)
        return
    rows = [(name, _plain(pair[0]), _plain(pair[1])) for name, pair in found.facts.items()]
    rows += [
        (f"metric {name}", _plain(pair[0]), _plain(pair[1])) for name, pair in found.metrics.items()
    ]
    if rows:
        output.show_table(["", *names], rows)
    for title, files in (("file", found.files), ("code", found.code)):
        for name, what in files.items():
            output.out().print(f"{title}  {name}: {what}", markup=False)
    _show_tensors(found)


def _show_tensors(found: Difference) -> None:
    if not found.tensors:
        if found.same_tensors:
            count = texts.many(found.same_tensors, "tensor")
            output.out().print(f"weights  the same: {count}", markup=False)
        return
    by_size = sorted(found.tensors, key=lambda change: -(change.relative or 0.0))
    output.show_table(
        ["tensor", "largest change", "relative", ""],
        [
            (
                change.name,
                "-" if change.largest is None else f"{change.largest:.3g}",
                "-" if change.relative is None else f"{change.relative:.2%}",
                "" if change.what == "changed" else change.what,
            )
            for change in by_size[:_TENSORS_SHOWN]
        ],
        right=("largest change", "relative"),
    )
    more = len(found.tensors) - _TENSORS_SHOWN
    words = f"{len(found.tensors)} tensors changed, {found.same_tensors} did not"
    output.note(words if more <= 0 else f"{words}; {more} are not shown (--json has them all)")


# --- words ----------------------------------------------------------------------------------------


def _aliases(aliases: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={number}" for name, number in aliases.items())


def _origin(version: Mapping[str, Any]) -> str:
    return f"{version['job']} step {version['step']:,}" if version["job"] else version["by"]


def _metrics(metrics: Mapping[str, float]) -> str:
    return " ".join(f"{name}={value:.4g}" for name, value in metrics.items())


def _tensors(specs: list[dict[str, Any]]) -> str:
    from holdfast.models.differences import spelled
    from holdfast.models.records import TensorSpec
    from holdfast.wire.documents import read

    return ", ".join(spelled(read("signature", TensorSpec, spec)) for spec in specs)


def _move(move: Mapping[str, Any]) -> str:
    before = "new" if move["before"] is None else f"from {move['before']}"
    why = f": {move['why']}" if move["why"] else ""
    return f"{before} to {move['after']}, {texts.ago(move['at_s'])} ago by {move['by']}{why}"


def _plain(value: Any) -> str:
    if value is None or value == "":
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)

"""`holdfast models`: what is published, and which version each alias names."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import completion, output
from holdfast.cli.models import show as models_show
from holdfast.cli.options import ClusterOption, JsonOption, Opened, opened
from holdfast.client import texts
from holdfast.wire.errors import Usage

if TYPE_CHECKING:
    from holdfast.models.records import ModelKind, Version
    from holdfast.models.registry import Registry

EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast models[/]                             what is published

  [cyan]holdfast models show digits[/]                 its versions and aliases

  [cyan]holdfast models show digits@prod[/]            one version: what it takes, gives, comes from

  [cyan]holdfast models diff digits@3 digits@4[/]      code, signature, metrics, weights

  [cyan]holdfast models alias digits prod 4[/]         from now on, prod means version 4

  [cyan]holdfast models export digits@4 ./out[/]       plain files, and how to load them


A version never changes. NAME alone is its alias prod, or its newest version.
"""
PUBLISH_EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast models publish digits --weights w.safetensors --code . --entry net:Net \\
      --example batch.npz --alias prod[/]

  [cyan]holdfast models publish digits --onnx digits.onnx[/]

  [cyan]holdfast models publish iris iris.skops[/]

  [cyan]holdfast models publish iris s3://team/models/iris.skops --alias prod[/]

  [cyan]holdfast models publish double --kind function --code . --entry maths:double \\
      --example '{"x": [[1.0], [2.0]]}'[/]


The example is one batch of inputs: a .npz or .json file, or JSON itself. From it comes what the
model takes and gives. The model is loaded once, as a replica will load it, before it is published.
"""
ALIAS_EXAMPLES = """[bold]Examples[/]

  [cyan]holdfast models alias digits prod 4 --why "better on last week"[/]

  [cyan]holdfast models alias digits prod 4 --expect 3[/]    only if it names version 3 now

  [cyan]holdfast models alias digits canary --remove[/]
"""

app = typer.Typer(
    help="Published models: versions, aliases, their files.",
    epilog=EXAMPLES,
    invoke_without_command=True,
    rich_markup_mode="rich",
)

ModelArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="The model's name.", autocompletion=completion.models)
]
VersionArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME@VERSION",
        help="A version by its number or an alias.",
        autocompletion=completion.models,
    ),
]
KindOption = Annotated[
    str | None,
    typer.Option(help="torch, python, function, onnx, sklearn, ...", show_default="by files"),
]
SourceOption = Annotated[
    Path | None,
    typer.Option(help="Its file or folder: .pt, .pt2, .skops, .ubj, .txt, MLflow, ..."),
]
SourceArgument = Annotated[
    str | None,
    typer.Argument(metavar="[SOURCE]", help="Its file or folder, or s3://BUCKET/KEY."),
]
ExamplesOption = Annotated[
    list[str] | None,
    typer.Option(metavar="FILE|JSON", help="A batch of inputs; several show what may vary."),
]
DynamicOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME:DIM,...", help="Dimensions that may have any size: x:1=tokens."),
]
PickleOption = Annotated[
    bool, typer.Option("--allow-pickle", help="Load it also if that runs code: you trust it.")
]
FilesOption = Annotated[
    list[Path] | None, typer.Option("--file", help="One more file for its `load`; repeat it.")
]


@app.callback()
def models(
    context: typer.Context, cluster: ClusterOption = None, as_json: JsonOption = False
) -> None:
    """List models: how many versions, which aliases, the newest."""
    if context.invoked_subcommand is not None:
        sources = [context.get_parameter_source(name) for name in ("cluster", "as_json")]
        if any(source is not None and source.name == "COMMANDLINE" for source in sources):
            raise Usage(
                "--cluster and --json stand behind the command here",
                fix=f"holdfast models {context.invoked_subcommand} ... --json",
            )
        return
    with opened(cluster, reads=True) as found:
        rows = models_show.model_rows(_registry(found))
    if as_json:
        output.show_json({"models": rows})
    else:
        models_show.show_models(rows)


@app.command(epilog=EXAMPLES)
def show(
    reference: Annotated[
        str,
        typer.Argument(
            metavar="NAME[@VERSION]",
            help="A model, or one version of it.",
            autocompletion=completion.models,
        ),
    ],
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a model's versions and aliases, or everything about one version."""
    with opened(cluster) as found:
        registry = _registry(found)
        if "@" in reference:
            resolved = registry.resolve(reference)
            row = models_show.version_row(registry, resolved.version, resolved.how)
        else:
            row = models_show.model_row(registry, reference)
    if as_json:
        output.show_json(row)
    elif "@" in reference:
        models_show.show_version(row)
    else:
        models_show.show_model(row)


@app.command(epilog=PUBLISH_EXAMPLES)
def publish(
    name: ModelArgument,
    source: SourceArgument = None,
    kind: KindOption = None,
    model: SourceOption = None,
    weights: Annotated[Path | None, typer.Option(help="A safetensors file.")] = None,
    onnx: Annotated[Path | None, typer.Option(help="An ONNX file.")] = None,
    code: Annotated[Path | None, typer.Option(help="The folder with its modules.")] = None,
    entry: Annotated[
        str, typer.Option(metavar="MODULE:NAME", help="The class or function that makes it.")
    ] = "",
    example: ExamplesOption = None,
    dynamic: DynamicOption = None,
    arguments: Annotated[
        str, typer.Option(metavar="JSON", help="What the entry is called with.")
    ] = "{}",
    files: FilesOption = None,
    metric: Annotated[
        list[str] | None, typer.Option("--metric", metavar="NAME=NUMBER", help="Repeat it.")
    ] = None,
    allow_pickle: PickleOption = False,
    alias: Annotated[str | None, typer.Option(help="Let this alias name it.")] = None,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Publish files and code as the next version of a model."""
    from holdfast.models import elsewhere, publishing
    from holdfast.models.describing import spoken
    from holdfast.models.records import check_alias

    given = publishing.VersionFiles(
        name=name,
        kind=kind_of(kind),
        source=source_of(model, onnx),
        weights=weights,
        code=code,
        entry=entry,
        examples=inputs_of(example or ()),
        dynamic=spoken(dynamic or ()),
        arguments=_object("--arguments", arguments),
        files=tuple(files or ()),
        metrics=_numbers(metric or []),
        allow_pickle=allow_pickle,
    )
    if alias is not None:
        check_alias(alias)
    elsewhere.check(given, source)
    with opened(cluster) as found:
        registry = _registry(found)
        before = registry.model(name)
        version = elsewhere.publish_from(registry, found.cluster.blobs(), given, source)
        if alias is not None:
            registry.set_alias(name, alias, version.number, why="models publish")
    fresh = before is None or version.number > before.newest
    if as_json:
        output.show_json({"model": name, "version": version.number, "new": fresh, "alias": alias})
        return
    _say_published(version, fresh, alias)


def _say_published(version: Version, fresh: bool, alias: str | None) -> None:
    what = "is published" if fresh else "was published before, the same"
    named = f"; alias {alias} names it" if alias else ""
    size = texts.size(version.size_bytes)
    output.out().print(f"{version.model}@{version.number} {what}: {size}{named}", markup=False)
    output.note(f"next: holdfast serve {version.model}@{alias or version.number}")


@app.command(epilog=EXAMPLES)
def diff(
    before: VersionArgument,
    after: VersionArgument,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what is different between two versions: signature, metrics, code, weights."""
    import tempfile

    from holdfast.models.differences import compared
    from holdfast.models.loading import fetch

    with opened(cluster) as found, tempfile.TemporaryDirectory(prefix="holdfast-diff-") as folder:
        registry, blobs = _registry(found), found.cluster.blobs()
        one, other = registry.resolve(before).version, registry.resolve(after).version
        places = [fetch(each, blobs, Path(folder)) for each in (one, other)]
        difference = compared(one, other, *places)
    if as_json:
        output.show_json(models_show.difference_document(one, other, difference))
    else:
        models_show.show_difference(one, other, difference)


@app.command(epilog=ALIAS_EXAMPLES)
def alias(
    name: ModelArgument,
    alias: Annotated[str, typer.Argument(metavar="ALIAS", help="prod, canary, ...")],
    version: Annotated[
        int | None, typer.Argument(metavar="[VERSION]", help="The version's number.")
    ] = None,
    why: Annotated[str, typer.Option(help="For the alias' history.")] = "",
    expect: Annotated[
        int | None, typer.Option(help="Only if it names this version now; 0: only if it is new.")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Forget the alias.")] = False,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let an alias name a version; or show its history, or remove it."""
    from holdfast.models.registry import ANY

    with opened(cluster) as found:
        registry = _registry(found)
        if remove:
            gone = registry.remove_alias(name, alias)
            words = f"{name} has no alias {alias} {'any more' if gone else ''}".strip()
            return _say({"model": name, "alias": alias, "removed": gone}, words, as_json)
        if version is None:
            registry.resolve(f"{name}@{alias}")
            return models_show.show_alias(name, alias, registry.aliases(name)[alias], as_json)
        wanted = ANY if expect is None else (expect or None)
        after = registry.set_alias(name, alias, version, expect=wanted, why=why)
    last = after.moves[-1]
    before = "" if last.before is None else f", before version {last.before}"
    document = {"model": name, "alias": alias, "version": version, "before": last.before}
    return _say(document, f"{name}@{alias} is version {version}{before}", as_json)


@app.command(epilog=EXAMPLES)
def retire(
    reference: VersionArgument,
    why: Annotated[str, typer.Option(help="The reason; people will read it.")],
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take a version out of use. Nobody can serve it any more; the store removes its files."""
    from holdfast.models.records import split_reference
    from holdfast.serve.services import Services

    model, number = split_reference(reference)
    if not isinstance(number, int):
        raise Usage(
            f"{reference!r} does not name a version by its number",
            why="an alias may move meanwhile",
            fix=f"holdfast models retire {model}@NUMBER --why ...",
        )
    with opened(cluster) as found:
        services = Services(found.session)
        holders = []
        for name, service in services.services().items():
            plan = services.plan(name)
            if service.model == model and plan is not None and number in plan.hold:
                holders.append(name)
        _registry(found).retire(model, number, why, held_by=holders)
    _say({"model": model, "version": number, "retired": why}, f"{reference} is retired", as_json)


@app.command(epilog=EXAMPLES)
def export(
    reference: VersionArgument,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or an empty folder.")],
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a version as plain files, with a README.txt that says how to load it."""
    from holdfast.models.exporting import export as write

    with opened(cluster) as found:
        resolved = _registry(found).resolve(reference)
        version = resolved.version
        files = write(version, found.cluster.blobs(), folder)
    document = {"model": version.model, "version": version.number, "files": files}
    count, size = texts.many(len(files), "file"), texts.size(version.size_bytes)
    words = f"{version.model}@{version.number} ({resolved.how}): {count}, {size} in {folder}"
    _say({**document, "folder": str(folder)}, words, as_json)
    if not as_json:
        output.note(f"how to load it: {folder / 'README.txt'}")


# --- private --------------------------------------------------------------------------------------


def _registry(found: Opened) -> Registry:
    import getpass
    import socket

    from holdfast.models.registry import Registry

    who = f"{getpass.getuser()}@{socket.gethostname().partition('.')[0]}"
    return Registry(found.session, found.cluster.blobs(), who)


def _say(document: dict[str, Any], words: str, as_json: bool) -> None:
    if as_json:
        output.show_json(document)
    else:
        output.out().print(words, markup=False)


def _object(option: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise Usage(f"{option} is not JSON: {text[:80]!r}", why=str(error)) from error
    if not isinstance(found, dict):
        raise Usage(f"{option} is not a JSON object", fix=f"""write it as {option} '{{"a": 1}}'""")
    return found


def _numbers(pairs: list[str]) -> dict[str, float]:
    found = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        try:
            found[name] = float(text)
        except ValueError:
            equals = ""
        if not (name and equals):
            raise Usage(f"--metric {pair!r} is not NAME=NUMBER", fix="--metric accuracy=0.98")
    return found


def kind_of(text: str | None) -> ModelKind | None:
    """The kind that was named."""
    from holdfast.models.records import ModelKind

    if text is None:
        return None
    try:
        return ModelKind(text)
    except ValueError:
        kinds = ", ".join(kind.value for kind in ModelKind)
        raise Usage(f"there is no kind {text!r}", fix=f"one of {kinds}") from None


def source_of(model: Path | None, onnx: Path | None) -> Path | None:
    """The file or folder of a model that is files."""
    if model is not None and onnx is not None:
        raise Usage("--model and --onnx both name a model", fix="give one of them")
    return model if model is not None else onnx


def inputs_of(examples: Sequence[str]) -> list[dict[str, Any]]:
    """The batches of inputs: from files, or as JSON."""
    return [_inputs(example) for example in examples]


def _inputs(example: str) -> dict[str, Any]:
    from holdfast.models import making

    if not example.lstrip().startswith("{"):
        return making.read_inputs(Path(example))
    try:
        return making.inputs_from(json.loads(example))
    except ValueError as error:
        raise Usage(f"--example is not JSON: {example[:80]!r}", why=str(error)) from error

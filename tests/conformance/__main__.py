"""`python -m tests.conformance > docs/conformance.md`: the table of all scripts."""

from __future__ import annotations

from tests.conformance.running import SCRIPTS, Script

HEAD = """# Scripts that were tried

Programs as people write them, one idea each, most of them by somebody who had the documentation
and not the code: `tests/conformance/scripts`. Each ends with one digest, alone and on any number of
workers whoever is killed, or is refused with a sentence that says what to do. `make test` runs some
of them alone and on three workers; `make proof-scripts` all of them on two, three and five workers
with kills, and random ones that are put together from parts.

*same*: one digest everywhere. *refused*: before it can go wrong. *either*: what it may not do is
end with other weights.

| script | idea | |
|---|---|---|
"""


def table() -> str:
    """docs/conformance.md."""
    rows = []
    for path in sorted(SCRIPTS.glob("*.py")):
        script = Script.read(path)
        kind = "either" if script.same and script.refused else "same" if script.same else "refused"
        rows.append(f"| `{path.stem}` | {script.idea.replace('|', '/')} | {kind} |\n")
    return HEAD + "".join(rows)


if __name__ == "__main__":
    print(table(), end="")

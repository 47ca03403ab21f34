"""What the commands that start agents share: their options, and the line that says what is waited
for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from holdfast.cli import output

CpuOption = Annotated[
    float | None,
    typer.Option(help="Cores each agent gives away; may be more than there are.", min=0.001),
]
MemoryOption = Annotated[
    str | None, typer.Option(help="Memory each agent gives away: 512MiB, 16GB …")
]
GpuOption = Annotated[
    int | None,
    typer.Option(help="GPUs each agent gives away; otherwise all that are free.", min=0),
]
GpuShareOption = Annotated[
    int | None,
    typer.Option(help="Workers that share each GPU: it counts as that many.", min=1),
]
DiskOption = Annotated[
    str | None, typer.Option(help="Disk each agent gives away; otherwise what is free, less 5 %.")
]
RegionOption = Annotated[
    str | None, typer.Option(help="Where this machine is: gateways prefer replicas of their own.")
]


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """A line that says what is being waited for, on a terminal; nothing elsewhere."""
    with output.err().status("looking") as shown:
        yield shown.update


def memory_bytes(text: str | None, option: str = "--memory") -> int | None:
    """`--memory 16GiB`, or another size, as bytes."""
    from holdfast.control.decide import units
    from holdfast.wire.errors import Usage

    found = None if text is None else units.bytes_of(text)
    if text is not None and found is None:
        raise Usage(f"{option} {text} is not {units.SIZE_EXAMPLE}", fix="write it as 16GiB")
    return found

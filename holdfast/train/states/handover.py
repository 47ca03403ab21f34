"""States over the mesh: given from one member's memory to others', and compared."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Final

from holdfast.train.members.mesh import Mesh
from holdfast.train.states.divergence import (
    DIGEST_BYTES,
    Disagreement,
    digests,
    judge,
    together,
    turn_of,
)
from holdfast.train.states.state import TrainingState
from holdfast.wire.errors import Corrupt
from holdfast.wire.limits import STATE_HEADER_BYTES_MAX


class Tag(IntEnum):
    """The tags of a member's own messages. Those of a step's exchange are 16 and above."""

    STATE_HEAD = 1
    STATE_BODY = 2
    DIGEST = 3
    DIGESTS = 4


def give(mesh: Mesh, takers: Sequence[int], state: TrainingState) -> None:
    """Send it to all of these at the same time, straight from its buffers."""
    head, *body = state.buffers()
    size = sum(view.nbytes for view in body).to_bytes(8, "little")
    mesh.exchange({peer: [size, head] for peer in takers}, {}, tag=Tag.STATE_HEAD)
    mesh.exchange(dict.fromkeys(takers, body), {}, tag=Tag.STATE_BODY)


def take(mesh: Mesh, source: int) -> TrainingState:
    """Receive it into memory of its own: what was held before is still whole if this fails."""
    head = mesh.recv(source, tag=Tag.STATE_HEAD, limit_bytes=STATE_HEADER_BYTES_MAX + 16)
    size = int.from_bytes(head[:8], "little")
    whole = memoryview(bytearray(len(head) - 8 + size))
    whole[: len(head) - 8] = head[8:]
    mesh.recv_into(source, whole[len(head) - 8 :], tag=Tag.STATE_BODY)
    try:
        return TrainingState.read(whole)
    except Corrupt as error:
        raise Corrupt(f"worker {source} sent no state", why=error.why) from error


# --- compared -------------------------------------------------------------------------------------


_SAID: Final = struct.Struct(f"<{DIGEST_BYTES}sI")  # the digest of all, how many there are
# Entries that are named for one worker; the rest is counted.
_NAMED: Final = 5


def compare(mesh: Mesh, state: TrainingState) -> tuple[Disagreement, list[str]]:
    """Who is wrong, and in what, in words. Nobody, usually, and that costs a few bytes."""
    found = digests(state, turn_of(state))
    mine = _SAID.pack(together(found), len(found))
    received = {peer: bytearray(_SAID.size) for peer in mesh.peers}
    mesh.exchange(
        {peer: [mine] for peer in mesh.peers},
        {peer: [reported] for peer, reported in received.items()},
        tag=Tag.DIGEST,
    )
    if all(reported == mine for reported in received.values()):
        return Disagreement(mesh.worker, ()), []
    reported = {mesh.worker: mine, **{peer: bytes(reported) for peer, reported in received.items()}}
    verdict = judge(reported)
    details = _details(mesh, [digest for _, digest in found], reported)
    right = details[verdict.source] if verdict.source is not None else details[min(details)]
    names = [name for name, _ in found]
    return verdict, [
        f"worker {worker} differs in {_where(names, details[worker], right)}"
        for worker in sorted(details)
        if details[worker] != right
    ]


def _details(mesh: Mesh, mine: list[bytes], reported: dict[int, bytes]) -> dict[int, list[bytes]]:
    """The digests of everybody's entries, one by one."""
    counts = {peer: _SAID.unpack(reported[peer])[1] for peer in mesh.peers}
    buffers = {peer: bytearray(count * DIGEST_BYTES) for peer, count in counts.items()}
    mesh.exchange(
        dict.fromkeys(mesh.peers, mine),
        {peer: [buffer] for peer, buffer in buffers.items()},
        tag=Tag.DIGESTS,
    )
    cut = {
        peer: [bytes(buffer[at : at + DIGEST_BYTES]) for at in range(0, len(buffer), DIGEST_BYTES)]
        for peer, buffer in buffers.items()
    }
    return {mesh.worker: mine, **cut}


def _where(names: list[str], found: list[bytes], right: list[bytes]) -> str:
    if len(found) != len(right) or len(found) != len(names):
        return f"the number of its entries ({len(found) - 1}, not {len(right) - 1})"
    wrong = [name for name, one, other in zip(names, found, right, strict=True) if one != other]
    more = f" and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
    return ", ".join(wrong[:_NAMED]) + more

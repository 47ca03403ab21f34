"""Members compare their states over their mesh."""

from __future__ import annotations

import struct
from typing import Final

from holdfast.train.members.mesh import Mesh
from holdfast.train.states.divergence import (
    DIGEST_BYTES,
    Verdict,
    digests,
    judge,
    together,
    turn_of,
)
from holdfast.train.states.handover import Tag
from holdfast.train.states.state import State

_SAID: Final = struct.Struct(f"<{DIGEST_BYTES}sI")  # the digest of all, how many there are
# Entries that are named for one worker; the rest is counted.
_NAMED: Final = 5


def compare(mesh: Mesh, state: State) -> tuple[Verdict, list[str]]:
    """Who is wrong, and in what, in words. Nobody, usually, and that costs a few bytes."""
    found = digests(state, turn_of(state))
    mine = _SAID.pack(together(found), len(found))
    heard = {peer: bytearray(_SAID.size) for peer in mesh.peers}
    mesh.exchange(
        {peer: [mine] for peer in mesh.peers},
        {peer: [said] for peer, said in heard.items()},
        tag=Tag.DIGEST,
    )
    if all(said == mine for said in heard.values()):
        return Verdict(mesh.worker, ()), []
    said = {mesh.worker: mine, **{peer: bytes(said) for peer, said in heard.items()}}
    verdict = judge(said)
    details = _details(mesh, [digest for _, digest in found], said)
    right = details[verdict.source] if verdict.source is not None else details[min(details)]
    names = [name for name, _ in found]
    return verdict, [
        f"worker {worker} differs in {_where(names, details[worker], right)}"
        for worker in sorted(details)
        if details[worker] != right
    ]


def _details(mesh: Mesh, mine: list[bytes], said: dict[int, bytes]) -> dict[int, list[bytes]]:
    """The digests of everybody's entries, one by one."""
    counts = {peer: _SAID.unpack(said[peer])[1] for peer in mesh.peers}
    room = {peer: bytearray(count * DIGEST_BYTES) for peer, count in counts.items()}
    mesh.exchange(
        dict.fromkeys(mesh.peers, mine),
        {peer: [buffer] for peer, buffer in room.items()},
        tag=Tag.DIGESTS,
    )
    cut = {
        peer: [bytes(buffer[at : at + DIGEST_BYTES]) for at in range(0, len(buffer), DIGEST_BYTES)]
        for peer, buffer in room.items()
    }
    return {mesh.worker: mine, **cut}


def _where(names: list[str], found: list[bytes], right: list[bytes]) -> str:
    if len(found) != len(right) or len(found) != len(names):
        return f"the number of its entries ({len(found) - 1}, not {len(right) - 1})"
    wrong = [name for name, one, other in zip(names, found, right, strict=True) if one != other]
    more = f" and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
    return ", ".join(wrong[:_NAMED]) + more

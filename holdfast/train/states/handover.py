"""A state, from one member's memory to others', over their mesh."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from holdfast.train.members.mesh import Mesh
from holdfast.train.states.state import State
from holdfast.wire.errors import Corrupt
from holdfast.wire.limits import STATE_HEADER_BYTES_MAX


class Tag(IntEnum):
    """The tags of a member's own messages. Those of a step's exchange are 16 and above."""

    STATE_HEAD = 1
    STATE_BODY = 2
    DIGEST = 3
    DIGESTS = 4


def give(mesh: Mesh, takers: Sequence[int], state: State) -> None:
    """Send it to all of these at the same time, straight from its buffers."""
    head, *body = state.buffers()
    size = sum(view.nbytes for view in body).to_bytes(8, "little")
    mesh.exchange({peer: [size, head] for peer in takers}, {}, tag=Tag.STATE_HEAD)
    mesh.exchange(dict.fromkeys(takers, body), {}, tag=Tag.STATE_BODY)


def take(mesh: Mesh, source: int) -> State:
    """Receive it into memory of its own: what was held before is still whole if this fails."""
    head = mesh.recv(source, tag=Tag.STATE_HEAD, limit_bytes=STATE_HEADER_BYTES_MAX + 16)
    size = int.from_bytes(head[:8], "little")
    room = memoryview(bytearray(len(head) - 8 + size))
    room[: len(head) - 8] = head[8:]
    mesh.recv_into(source, room[len(head) - 8 :], tag=Tag.STATE_BODY)
    try:
        return State.read(room)
    except Corrupt as error:
        raise Corrupt(f"worker {source} sent no state", why=error.why) from error

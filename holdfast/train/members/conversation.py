"""What members say to each other besides sums: who is where, and results that everyone shall know.

Everything that all members do together has a place: (step, number). Members do these things in the
same order, but after a broken mesh one may be ahead of another: it has the result that the other
still asks for. So whoever speaks also says what it knows, and whoever is behind takes it from
there. What is older than where one stands is passed over.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

from holdfast.train.members.mesh import Mesh
from holdfast.wire.errors import BugError

Place = tuple[int, int]

# The number of a step's own sum: after everything else at its boundary.
STEP: Final = 2**31 - 1
# That of a member that has nothing more to ask: behind everything.
END: Final = 2**31
_LEAD: Final = struct.Struct("<QQQ")  # step, number, bytes of the notes
_TAG: Final = 20


class Conversation:
    """The members of one meeting. One thread at a time."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._ahead: dict[int, tuple[Place, bytes]] = {}  # said by peers that are further
        # Whether all have said the same place once. From then on nobody of this meeting is ahead
        # of another, and a place needs to be said only together with something else. Everyone
        # hears the same places of everyone, so all conclude this at the same place.
        self.level = False

    def lead(self, place: Place, notes: bytes) -> dict[int, tuple[Place, bytes]]:
        """Say that this is where I stand, and hear where the others do: at this place, or further.

        What a peer that is further has said is also heard by the call at that later place.
        """
        peers = self._mesh.peers
        lead = _LEAD.pack(*place, len(notes))
        received = {
            peer: reported for peer, reported in self._ahead.items() if reported[0] >= place
        }
        self._ahead = {
            peer: reported for peer, reported in self._ahead.items() if reported[0] > place
        }
        speak = True
        while speak or len(received) < len(peers):
            missing = [peer for peer in peers if peer not in received]
            leads = {peer: bytearray(_LEAD.size) for peer in missing}
            self._mesh.exchange(
                {peer: [lead] for peer in peers} if speak else {},
                {peer: [buffer] for peer, buffer in leads.items()},
                tag=_TAG,
            )
            found = {peer: _LEAD.unpack(buffer) for peer, buffer in leads.items()}
            bodies = {peer: bytearray(size) for peer, (_, _, size) in found.items() if size}
            self._mesh.exchange(
                {peer: [notes] for peer in peers} if speak and notes else {},
                {peer: [buffer] for peer, buffer in bodies.items()},
                tag=_TAG,
            )
            speak = False
            for peer, (step, number, _) in found.items():
                reported = (step, number), bytes(bodies.get(peer, b""))
                if reported[0] >= place:
                    received[peer] = reported
                if reported[0] > place:
                    self._ahead[peer] = reported
        self.level = self.level or all(where == place for where, _ in received.values())
        return received

    def ask(
        self, place: Place, results: list[Any], mine: Mapping[int, Any], wanted: Sequence[int]
    ) -> dict[str, Any]:
        """What all lanes of `wanted` have answered here: `mine` are those of this worker. Whoever
        is further gives its result; ours so far, `results`, are for whoever is behind."""
        lanes = {str(lane): value for lane, value in mine.items()}
        reported = {"results": results, "lanes": lanes}
        received = self.lead(place, json.dumps(reported).encode())
        found = json.loads(json.dumps(lanes))  # as everybody else gets it
        for where, notes in received.values():
            if where > place:
                answer: dict[str, Any] = json.loads(notes)["results"][place[1]]
                return answer
            found.update(json.loads(notes)["lanes"])
        if sorted(map(int, found)) != sorted(wanted):
            raise BugError(f"lanes {sorted(found)} have answered where {list(wanted)} were asked")
        return dict(sorted(found.items(), key=lambda item: int(item[0])))

    def tell(self, place: Place, notes: bytes) -> None:
        """Say it to everyone, and wait for nobody."""
        for peer in self._mesh.peers:
            self._mesh.send(peer, _LEAD.pack(*place, len(notes)), tag=_TAG)
            if notes:
                self._mesh.send(peer, notes, tag=_TAG)


def known(results: Sequence[Any]) -> bytes:
    """What a member says where it asks for nothing: the results that it has."""
    return json.dumps({"results": results, "lanes": {}}).encode() if results else b""

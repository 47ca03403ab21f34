"""One member of a mesh as a process: it meets the others, and exchanges a megabyte with each.

python -m tests.faults.mesh_process FOLDER WORKER HOST,HOST,...
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from holdfast.train.members.greeting import Epoch, Hello
from holdfast.train.members.listener import PeerListener
from holdfast.train.members.meeting import Meeting
from holdfast.train.members.mesh import Mesh, tune
from holdfast.train.members.wakeup import Wakeup
from tests.credentials import credentials

JOB, PORT, SIZE = "job", 7_000, 1_000_000


def main(folder: str, number: str, listed: str) -> None:
    me, hosts = int(number), listed.split(",")
    wakeup = Wakeup()
    listener = PeerListener(
        credentials(JOB, folder=Path(folder, number)), me, hosts[me], PORT + me, wakeup
    )
    addresses = {worker: f"{host}:{PORT + worker}" for worker, host in enumerate(hosts)}
    peers = [worker for worker in addresses if worker != me]
    mine = Hello("meet", JOB, me, -1, Epoch(1, 0), 0)
    meeting = Meeting(listener, wakeup, mine, addresses, peers)
    assert meeting.run(lambda: False, lambda _suspects: None)
    kinds = {peer: type(sock).__name__ for peer, sock in meeting.sockets.items()}
    mesh = Mesh(me, 1, 0, {peer: tune(sock) for peer, sock in meeting.sockets.items()})
    rooms = {peer: bytearray(SIZE) for peer in peers}
    mesh.exchange(
        {peer: [bytes([me]) * SIZE] for peer in peers},
        {peer: [room] for peer, room in rooms.items()},
    )
    assert all(room == bytes([peer]) * SIZE for peer, room in rooms.items())
    print(json.dumps(kinds), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

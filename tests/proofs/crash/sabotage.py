"""Losses made on purpose. Each breaks one promise; the checks must report every one of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.coordination.embedded import protocol
from holdfast.coordination.embedded.folder import DURABLE
from holdfast.coordination.embedded.log import SegmentReader, read_header
from tests.proofs import wire
from tests.proofs.crash.model import LEFT
from tests.proofs.crash.tails import find_tail

if TYPE_CHECKING:
    from tests.proofs.crash.torture import Torture


def cut_acknowledged(torture: Torture) -> bool:
    """A disk that lied: the batch of the last acknowledged write, synced, is torn all the same.

    The mark that would tell goes too; with it the server refuses the folder as damaged.
    """
    folder = torture.server.data
    tail = find_tail(folder)
    if tail is None:
        return False
    for batch in SegmentReader(tail.path, read_header(tail.path)).batches():
        if batch.first_zxid <= torture.auditor.highest_zxid <= batch.last_zxid:
            with tail.path.open("r+b") as file:
                file.truncate(batch.offset + 1)
            (folder / DURABLE).unlink()
            return True
    return False


def rewind(torture: Torture) -> bool:
    """An old copy of the data folder in the place of the new one."""
    folder: Path = torture.server.data
    told = torture.auditor.highest_zxid
    copies = list(folder.parent.glob("copy-*"))
    if not copies:
        shutil.copytree(folder, folder.with_name(f"copy-{told}"))
        return False
    if f"copy-{told}" == copies[0].name:
        return False  # nobody was told anything since the copy was made
    shutil.rmtree(folder)
    copies[0].rename(folder)
    return True


def _write(torture: Torture, opcode: int, body: bytes) -> bool:
    with wire.Link(torture.server.port) as link:
        link.connect()
        reply = link.call(1, opcode, body)
        link.call(2, protocol.CLOSE_SESSION)
        return reply is not None and not reply.error


def undo_write(torture: Torture) -> bool:
    """An acknowledged write has not happened."""
    root = torture.writers[0].root
    return _write(torture, protocol.SET_DATA, wire.set_data_body(f"{root}/counter", b"-1"))


def half_multi(torture: Torture) -> bool:
    """One half of a multi happened."""
    return _write(torture, protocol.SET_DATA, wire.set_data_body(LEFT, b"0:1"))


def _drop(torture: Torture, ephemeral: bool) -> bool:
    writer = torture.writers[0]
    stream = writer.stream
    for name, node in stream.state.nodes.items():
        # A node that no open request touches: without it the state is that of no prefix.
        steady = all(request.after.nodes.get(name) == node for request in stream.open)
        if steady and node.ephemeral == ephemeral and name[0] in "emn":
            body = wire.versioned_body(f"{writer.root}/{name}")
            if _write(torture, protocol.DELETE, body):
                return True
    return False


def drop_node(torture: Torture) -> bool:
    """An acknowledged node is gone."""
    return _drop(torture, ephemeral=False)


def drop_ephemeral(torture: Torture) -> bool:
    """An ephemeral node is gone, though its session lives."""
    return _drop(torture, ephemeral=True)


def end_session(torture: Torture) -> bool:
    """A session is gone, though nobody ended it."""
    writer = torture.writers[0]
    with wire.Link(torture.server.port) as link:
        welcome = link.connect(session=writer.session, password=writer.password)
        if welcome is None or welcome.timeout_ms == 0:
            return False
        return link.call(1, protocol.CLOSE_SESSION) is not None


# Each is tried again after every kill until it says that it has done its harm.
TO_THE_FILES: dict[str, Callable[[Torture], bool]] = {
    one.__name__.replace("_", "-"): one for one in (cut_acknowledged, rewind)
}
TO_THE_TREE: dict[str, Callable[[Torture], bool]] = {
    one.__name__.replace("_", "-"): one
    for one in (undo_write, half_multi, drop_node, drop_ephemeral, end_session)
}
EVERY = (*TO_THE_FILES, *TO_THE_TREE)

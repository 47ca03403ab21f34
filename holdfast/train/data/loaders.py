"""Loader processes: they read and collate ahead of the loop, and end with the worker.

A loader process has some of the lanes of a stream. It reads each of them from where it was told to,
step after step, at most `LOADER_STEPS_AHEAD` ahead of what the worker has taken, and goes on into
the next epoch by itself. When a view has changed a lane's place, it is told the new one.

A loader process dies with its worker, at once, also when that is killed: it has inherited the
worker's sockets, and peers would go on waiting at them.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Final

import torch

from holdfast.train.chance import seed_everything
from holdfast.train.data.sharded import Mark
from holdfast.train.data.streams import LaneShare, Read, StreamPlace, Streams
from holdfast.wire.errors import Unavailable

# A loader process reads so many steps of a lane ahead of the loop: enough that the one after the
# next is under way while one is computed, and a view change throws little away.
LOADER_STEPS_AHEAD: Final = 2
# A loader process that was told to end has so long: it may be in the middle of a slow read.
LOADER_END_S: Final = 2.0

Collate = Callable[[list[Any]], Any]
_PDEATHSIG: Final = 1  # prctl's option


def die_with(parent: int) -> None:
    """In a new process: be killed when this parent dies, whatever it is doing then."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)  # it died before it could be seen to


@dataclass(slots=True)
class _Expected:
    """A lane as the worker sees it: which place comes next, what has come, what was taken last."""

    reading: int  # changes whenever the lane is told another place
    place: StreamPlace
    come: deque[LaneShare] = field(default_factory=deque)
    last: tuple[StreamPlace, LaneShare] | None = None
    over: int | None = None  # the epoch that it has read to its end


class StreamLoaders:
    """Lanes of a stream, read ahead by processes. The same face as `Streams`."""

    def __init__(self, streams: Streams, collate: Collate, count: int, *, keep_items: bool) -> None:
        self._make = (streams, collate, keep_items)
        self._count = count
        self._loaders: list[_LoaderProcess] = []
        self._lanes: dict[int, _Expected] = {}
        self._readings = 0

    def read(self, place: StreamPlace, lane: int, mark: Mark | None) -> LaneShare:
        if not self._loaders:
            self._loaders = [_LoaderProcess(*self._make) for _ in range(self._count)]
        found = self._lanes.get(lane)
        if found is not None and found.last is not None:
            before, share = found.last
            if before == place:
                return share
            if found.over == place.epoch and place.at >= before.at:
                return LaneShare((), False, share.mark)
        loader = self._loaders[lane % self._count]
        if found is None or found.place != place:
            self._readings += 1
            found = self._lanes[lane] = _Expected(self._readings, place)
            loader.send(("open", lane, found.reading, place, mark))
        while not found.come:
            which, reading, share = loader.receive()
            to = self._lanes.get(which)
            if to is not None and to.reading == reading:
                to.come.append(share)
        share = found.come.popleft()
        loader.send(("taken", lane, found.reading))
        found.last = (place, share)
        found.over = None if share.more else place.epoch
        found.place = (
            place.next if share.more else replace(place, epoch=place.epoch + 1, index=0, at=0)
        )
        return share

    def keep(self, lanes: set[int]) -> None:
        for lane in [each for each in self._lanes if each not in lanes]:
            del self._lanes[lane]
            self._loaders[lane % self._count].send(("close", lane))

    def close(self) -> None:
        """End the processes, and wait until they are gone."""
        loaders, self._loaders = self._loaders, []
        self._lanes.clear()
        # First all lines: a process that was forked later has inherited those of the others, so
        # the last one sees its end first.
        for loader in loaders:
            loader.hang_up()
        for loader in reversed(loaders):
            loader.end()


class _LoaderProcess:
    """One process, and the worker's end of its line."""

    def __init__(self, streams: Streams, collate: Collate, keep_items: bool) -> None:
        context = multiprocessing.get_context()
        ours, theirs = context.Pipe()
        self._line: Connection = ours
        self._process: BaseProcess = context.Process(
            target=_load,
            args=(os.getpid(), theirs, ours, streams, collate, keep_items),
            name="holdfast-loader",
            daemon=True,
        )
        self._process.start()
        theirs.close()

    def send(self, what: tuple[Any, ...]) -> None:
        with contextlib.suppress(OSError):  # it is gone: `receive` says so
            self._line.send(what)

    def receive(self) -> tuple[int, int, LaneShare]:
        try:
            kind, *what = pickle.loads(self._line.recv_bytes())  # noqa: S301  our own process
        except (EOFError, OSError) as error:
            self._process.join(LOADER_END_S)
            raise Unavailable(
                f"a loader process has ended (status {self._process.exitcode})",
                why="somebody killed it, or it had too little memory",
                fix="nothing: the worker is started again; fewer loader_workers need less memory",
            ) from error
        if kind == "failed":
            what[0].add_note(what[1])
            raise what[0]
        lane, reading, share = what
        return lane, reading, share

    def hang_up(self) -> None:
        self._line.close()

    def end(self) -> None:
        self._process.join(LOADER_END_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()


# --- in the loader process ----------------------------------------------------------------------


@dataclass(slots=True)
class _LaneReading:
    """A lane as the loader process sees it."""

    number: int
    place: StreamPlace
    mark: Mark | None
    ahead: int = 0  # shares that were sent and not taken


def _load(
    parent: int,
    line: Connection,
    theirs: Connection,
    streams: Streams,
    collate: Collate,
    keep_items: bool,
) -> None:
    """Until the worker closes the line."""
    die_with(parent)
    theirs.close()
    # What the worker does on a signal is the worker's business; an interrupt comes to both.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    readings: dict[int, _LaneReading] = {}
    with contextlib.suppress(EOFError, OSError):
        while True:
            due = [lane for lane in sorted(readings) if readings[lane].ahead < LOADER_STEPS_AHEAD]
            while not due or line.poll():
                _obey(line.recv(), readings, streams)
                due = [
                    lane for lane in sorted(readings) if readings[lane].ahead < LOADER_STEPS_AHEAD
                ]
            # The lane that is least ahead is wanted first.
            lane = min(due, key=lambda each: (readings[each].ahead, each))
            try:
                share = _next(readings[lane], lane, streams, collate, keep_items)
                message = pickle.dumps(("share", lane, readings[lane].number, share), protocol=5)
            except Exception as error:  # the worker raises it again
                message = pickle.dumps(("failed", _sendable(error), traceback.format_exc()))
                line.send_bytes(message)
                return
            line.send_bytes(message)


def _obey(what: tuple[Any, ...], readings: dict[int, _LaneReading], streams: Streams) -> None:
    kind, lane, *more = what
    if kind == "open":
        readings[lane] = _LaneReading(*more)
    elif kind == "close":
        readings.pop(lane, None)
        streams.keep(set(readings))
    elif lane in readings and readings[lane].number == more[0]:
        readings[lane].ahead -= 1


def _next(
    reading: _LaneReading, lane: int, streams: Streams, collate: Collate, keep_items: bool
) -> LaneShare:
    """The lane's next share, collated; the reading moves on."""
    place = reading.place
    share = streams.read(place, lane, reading.mark)
    reading.ahead += 1
    if share.more:
        reading.place, reading.mark = place.next, share.mark
    else:
        reading.place, reading.mark = replace(place, epoch=place.epoch + 1, index=0, at=0), None
    return replace(share, reads=tuple(_collated(read, collate, keep_items) for read in share.reads))


def _collated(read: Read, collate: Collate, keep_items: bool) -> Read:
    seed_everything(read.seed)
    data = collate(list(read.items))
    return replace(read, data=data, items=read.items if keep_items else ())


def _sendable(error: Exception) -> Exception:
    """The error, if it can be sent; otherwise what it says."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301  our own
    except Exception:  # a script's own error may refuse in any way that it likes
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error

"""Strategies for the values that travel between agents and the coordinator."""

from __future__ import annotations

from hypothesis import strategies as st

from holdfast.wire.orders import (
    Attempt,
    Forget,
    GiveSettings,
    GiveView,
    Order,
    StartWorker,
    StopWorker,
    TakeShare,
    View,
)
from holdfast.wire.reports import Exit, ExitKind, NodeFacts, Part, WorkerFacts, WorkerPhase
from holdfast.wire.resources import Resources

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
names = st.text("abcxyz-09", min_size=1, max_size=12)
numbers = st.integers(0, 2**63 - 1)
lanes = st.lists(st.integers(0, 2**31 - 1), max_size=5).map(tuple)
seconds = st.floats(0, 1e12)
resources = st.builds(
    Resources,
    cpu=st.floats(0, 1e6),
    memory_bytes=numbers,
    gpu=st.integers(0, 2**31 - 1),
    disk_bytes=numbers,
)
views = st.builds(
    View,
    number=numbers,
    lanes=st.dictionaries(numbers, lanes, max_size=5),
    restore_step=st.none() | numbers,
)
attempts = st.builds(Attempt, number=numbers, step=numbers, view=numbers, since_s=seconds)
parts = st.builds(Part, key=texts, size_bytes=numbers, digest=texts)
whose = {"node": names, "job": names, "worker": numbers}
orders: st.SearchStrategy[Order] = st.one_of(
    st.builds(
        StartWorker,
        **whose,
        bundle=texts,
        command=st.lists(texts, max_size=4).map(tuple),
        resources=resources,
        environment=st.dictionaries(texts, texts, max_size=4),
        silence_s=st.none() | seconds,
        requirements=st.lists(texts, max_size=3).map(tuple),
    ),
    st.builds(GiveView, **whose, view=views),
    st.builds(
        GiveSettings,
        **whose,
        settings=st.lists(st.tuples(texts, texts, numbers), max_size=4).map(tuple),
    ),
    st.builds(
        TakeShare,
        **whose,
        attempt=attempts,
        share=st.integers(0, 9),
        shares=st.integers(10, 20),
    ),
    st.builds(StopWorker, **whose, notice_s=seconds),
    st.builds(Forget, **whose),
)
workers = st.builds(
    WorkerFacts,
    job=names,
    worker=numbers,
    phase=st.sampled_from(WorkerPhase),
    view=numbers,
    step=st.none() | numbers,
    parts=st.dictionaries(numbers, st.lists(parts, max_size=3).map(tuple), max_size=3),
    missed=st.frozensets(numbers, max_size=3),
    unreadable=st.frozensets(numbers, max_size=3),
    unreadable_why=texts,
    settings=numbers,
    exit=st.none() | st.builds(Exit, kind=st.sampled_from(ExitKind), detail=texts),
    preparing=texts,
    preparing_since_s=seconds,
)
snapshots = st.builds(
    NodeFacts,
    node=names,
    capacity=resources,
    workers=st.lists(workers, max_size=4, unique_by=lambda worker: (worker.job, worker.worker)).map(
        tuple
    ),
)

"""What the cache has counted, as lines for Prometheus. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.serve.records import CacheCounts


def lines(counts: CacheCounts, labels: str) -> Iterator[str]:
    """The lines, each with these labels."""
    told = {
        "hits_total": (counts.hits, "counter", "Answers from this replica's memory."),
        "shared_hits_total": (counts.shared_hits, "counter", "Answers from Redis."),
        "joined_total": (counts.joined, "counter", "Answers of an equal request at the same time."),
        "misses_total": (counts.misses, "counter", "Answers that were computed."),
        "errors_total": (counts.errors, "counter", "What Redis failed to do."),
        "entries": (counts.entries, "gauge", "Answers in memory."),
        "bytes": (counts.bytes, "gauge", "Their size."),
        "shared": (int(counts.shared), "gauge", "1 while Redis answers."),
    }
    for name, (value, kind, words) in told.items():
        yield f"# HELP holdfast_cache_{name} {words}"
        yield f"# TYPE holdfast_cache_{name} {kind}"
        yield f"holdfast_cache_{name}{{{labels}}} {value}"

"""Watch fan-out: from the write to the last of many connections that were told of it."""

from __future__ import annotations

from bench.coordination.bench import Bench
from bench.coordination.report import Row


def watches(bench: Bench) -> list[Row]:
    servers = bench.warm_servers()
    (generator,) = bench.generators(1)
    size = bench.plan.watchers
    told = Row("watches", f"write to last of {size:,} events: p50", "ms")
    slowest = Row("watches", f"write to last of {size:,} events: longest", "ms", worst=True)
    for number in range(bench.plan.watch_rounds + 1):
        bench.say(f"watches: round {number} of {bench.plan.watch_rounds}")
        for name, server in servers.items():
            generator.call("watch", port=server.port, size=size)
            answer = generator.call("change", port=server.port)
            if number:  # the first warms up what the other sections do not touch
                told.add(name, answer["seconds"] * 1_000, answer["wrong"])
                slowest.add(name, answer["seconds"] * 1_000)
    for server in servers.values():
        generator.call("leave", port=server.port)
    return [told, slowest]

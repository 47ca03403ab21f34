"""The client for programs with a loop: the same verbs, awaited.

    async with AsyncClient() as client:
        job = await client.submit("train.py", workers=2)
        async for status in job.watch():
            print(status.phase, status.step)
        await job.result()

Nothing blocks the caller's loop. What asks the cluster is done on threads that the client owns,
each for some milliseconds; waiting holds none. A cancelled wait leaves jobs and services alone.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from holdfast.client import job_waits, logs, service_waits, serving
from holdfast.client.client import Client, PublishedModel
from holdfast.client.futures import closed
from holdfast.client.job_status import JobStatus, status_of
from holdfast.client.jobs import Job
from holdfast.client.predicting import Answer
from holdfast.client.service_status import ServiceStatus
from holdfast.client.service_status import status_of as service_status_of
from holdfast.client.services import Service
from holdfast.client.waiting import Poll
from holdfast.wire.limits import (
    JOB_ACT_WAIT_S,
    JOB_UPDATE_WAIT_S,
    SERVE_ANSWER_S,
    SERVE_WAIT_S,
    UNSERVE_WAIT_S,
)

if TYPE_CHECKING:
    from holdfast.client.logs import LogLine
    from holdfast.client.opening import Note
    from holdfast.client.submitting import Source
    from holdfast.wire.history import HistoryEntry

T = TypeVar("T")


class AsyncClient:
    """`Client`, awaited. It connects with `async with`, or with its first verb; `close` ends it.
    For one loop: that of whoever uses it."""

    def __init__(
        self,
        cluster: str | os.PathLike[str] | None = None,
        *,
        reads: bool = False,
        note: Note | None = None,
    ) -> None:
        self._make = partial(Client, cluster, reads=reads, note=note)
        self._lock = asyncio.Lock()
        self._client: Client | None = None
        self._closed = False

    async def connected(self) -> Client:
        """The client underneath, connected."""
        async with self._lock:
            if self._closed:
                raise closed()
            if self._client is None:
                self._client = await asyncio.to_thread(self._make)
            return self._client

    async def close(self) -> None:
        """See `Client.close`."""
        async with self._lock:
            self._closed = True
            if self._client is not None:
                await asyncio.to_thread(self._client.close)

    async def __aenter__(self) -> Self:
        await self.connected()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def submit(self, source: Source, *arguments: object, **more: Any) -> AsyncJob:
        """See `Client.submit`, which says what `more` may be."""
        client = await self.connected()
        return AsyncJob(client, await run(client, client.submit, source, *arguments, **more))

    async def update(
        self, source: Source, *, name: str | None = None, bundle: str | None = None
    ) -> AsyncJob:
        """See `Client.update`."""
        client = await self.connected()
        job = await run(client, client.update, source, name=name, bundle=bundle)
        return AsyncJob(client, job)

    async def subscribe(self, topic: str, handler: str, *, group: str, **more: Any) -> AsyncJob:
        """See `Client.subscribe`, which says what `more` may be."""
        client = await self.connected()
        job = await run(client, client.subscribe, topic, handler, group=group, **more)
        return AsyncJob(client, job)

    async def publish(self, name: str, source: str | os.PathLike[str], **more: Any) -> int:
        """See `Client.publish`, which says what `more` may be."""
        client = await self.connected()
        return await run(client, client.publish, name, source, **more)

    async def job(self, name: str) -> AsyncJob:
        """See `Client.job`."""
        client = await self.connected()
        return AsyncJob(client, await run(client, client.job, name))

    async def jobs(self) -> dict[str, AsyncJob]:
        """See `Client.jobs`."""
        client = await self.connected()
        found = await run(client, client.jobs)
        return {name: AsyncJob(client, job) for name, job in found.items()}

    async def serve(self, model: str, **more: Any) -> AsyncService:
        """See `Client.serve`, which says what `more` may be."""
        client = await self.connected()
        return AsyncService(client, await run(client, client.serve, model, **more))

    async def service(self, name: str) -> AsyncService:
        """See `Client.service`."""
        client = await self.connected()
        return AsyncService(client, await run(client, client.service, name))

    async def services(self) -> dict[str, AsyncService]:
        """See `Client.services`."""
        client = await self.connected()
        found = await run(client, client.services)
        return {name: AsyncService(client, service) for name, service in found.items()}

    async def models(self) -> dict[str, PublishedModel]:
        """See `Client.models`."""
        client = await self.connected()
        return await run(client, client.models)


async def run(client: Client, call: Callable[..., T], *arguments: Any, **keywords: Any) -> T:
    """Call it on a thread of the client."""
    return await asyncio.wrap_future(client.threads.submit(call, *arguments, **keywords))


async def waited(client: Client, wait: Poll[T]) -> T:
    """Wait for it: a look at a time on a thread of the client, none between two looks."""
    return await wait.awaited(partial(run, client))


class AsyncJob:
    """`Job`, awaited; each verb does what that of the same name does there."""

    def __init__(self, client: Client, job: Job) -> None:
        self.name = job.name
        self._client = client
        self._job = job

    def __repr__(self) -> str:
        return f"<AsyncJob {self.name}>"

    async def status(self) -> JobStatus:
        """How it is now."""
        return await run(self._client, self._job.status)

    async def history(self) -> list[HistoryEntry]:
        """What was asked and decided, each with its reason; oldest first."""
        return await run(self._client, self._job.history)

    async def watch(self, *, steps: bool = True) -> AsyncGenerator[JobStatus, None]:
        """Its status now, and each time that it changes, until it has ended."""
        changes = self._job.changes(steps=steps)
        while True:
            if (status := await run(self._client, changes.poll)) is not None:
                yield status
            if changes.over:
                return
            await asyncio.sleep(changes.every_s)

    async def logs(
        self,
        *,
        follow: bool = False,
        worker: int | None = None,
        lines: int | None = None,
        stdout: bool = True,
        stderr: bool = True,
    ) -> AsyncGenerator[LogLine, None]:
        """What its workers wrote; with `follow`, what comes until it has ended."""
        wanted = {"worker": worker, "lines": lines, "stdout": stdout, "stderr": stderr}
        stream = await run(self._client, self._job.log_stream, **wanted)
        async with aclosing(logs.awaited(stream.batches(follow=follow))) as written:
            async for line in written:
                yield line

    async def wait(self, timeout_s: float | None = None) -> JobStatus:
        """Until it has ended, however that may be."""
        return status_of(await self._ended(timeout_s), {})

    async def result(self, timeout_s: float | None = None) -> JobStatus:
        """Until it has succeeded; `JobFailed` if it does not."""
        return job_waits.ended(await self._ended(timeout_s))

    async def wait_ready(self, timeout_s: float | None = JOB_UPDATE_WAIT_S) -> JobStatus:
        """Of a job that serves: until all of its replicas are ready."""
        wait = job_waits.until_ready(self._job.found, self.name, timeout_s)
        return status_of(await waited(self._client, wait), {})

    async def wait_updated(self, timeout_s: float | None = JOB_UPDATE_WAIT_S) -> JobStatus:
        """After `update`: until every replica is of the new revision."""
        wait = job_waits.until_updated(self._job.found, self.name, timeout_s)
        return status_of(await waited(self._client, wait), {})

    async def scale(self, workers: int | None) -> None:
        """Have so many workers at most; None: as many as its file allows."""
        await run(self._client, self._job.scale, workers)

    async def set(
        self, settings: Mapping[str, Any] | None = None, *, at_step: int = 0, **more: Any
    ) -> None:
        """Change settings while it runs."""
        await run(self._client, self._job.set, settings, at_step=at_step, **more)

    async def checkpoint(self, *, wait: bool = False, timeout_s: float = JOB_ACT_WAIT_S) -> None:
        """Ask for a checkpoint; with `wait`, until it is committed."""
        before = await run(self._client, self._job.checkpoint)
        if wait:
            found = self._job.found
            await waited(self._client, job_waits.until_committed(found, before, timeout_s))

    async def pause(self, *, wait: bool = False, timeout_s: float = JOB_ACT_WAIT_S) -> None:
        """Save a checkpoint and end its workers, until `resume`."""
        await run(self._client, self._job.pause)
        if wait:
            await self._phase("paused", timeout_s)

    async def resume(self, *, from_scratch: bool = False) -> None:
        """Let a paused job go on from its last checkpoint; `from_scratch`: one none of whose
        checkpoints can be read begins at step 0."""
        await run(self._client, self._job.resume, from_scratch=from_scratch)

    async def cancel(
        self, *, now: bool = False, wait: bool = False, timeout_s: float = JOB_ACT_WAIT_S
    ) -> None:
        """End it for good, after a last checkpoint; `now`: without one."""
        await run(self._client, self._job.cancel, now=now)
        if wait:
            await self._phase("stopped", timeout_s)

    async def remove(self) -> None:
        """Forget it, once it has ended."""
        await run(self._client, self._job.remove)

    async def _ended(self, timeout_s: float | None) -> Any:
        wait = job_waits.until_ended(self._job.found, self.name, timeout_s)
        return await waited(self._client, wait)

    async def _phase(self, phase: str, timeout_s: float) -> None:
        wait = job_waits.until_phase(self._job.found, self.name, phase, timeout_s)
        await waited(self._client, wait)


class AsyncService:
    """`Service`, awaited; each verb does what that of the same name does there."""

    def __init__(self, client: Client, service: Service) -> None:
        self.name = service.name
        self.key = service.key
        self._client = client
        self._service = service

    def __repr__(self) -> str:
        return f"<AsyncService {self.name}>"

    async def status(self) -> ServiceStatus:
        """How it is now."""
        return await run(self._client, self._service.status)

    async def history(self) -> list[HistoryEntry]:
        """What was asked and decided, each with its reason; oldest first."""
        return await run(self._client, self._service.history)

    async def watch(self) -> AsyncGenerator[ServiceStatus, None]:
        """Its status now, and each time that it changes."""
        changes = service_waits.ServiceChanges(self._client.found, self.name)
        while True:
            if (status := await run(self._client, changes.poll)) is not None:
                yield status
            await asyncio.sleep(changes.every_s)

    async def wait_ready(self, timeout_s: float = SERVE_WAIT_S) -> ServiceStatus:
        """Until it serves what is wanted and a gateway answers for it."""
        found, served = self._client.found, self._service.served
        if served is not None and served.settings_only:
            noted = service_waits.until_noted(found, self.name, timeout_s)
            return service_status_of(await waited(self._client, noted))
        settled = service_waits.until_settled(found, self.name, timeout_s)
        seen = await waited(self._client, settled)
        address = next(iter(seen.gateways.values())).address
        answered = service_waits.until_answered(address, self.name, SERVE_ANSWER_S)
        await waited(self._client, answered)
        return service_status_of(seen)

    async def wait_settled(self, timeout_s: float = SERVE_WAIT_S) -> ServiceStatus:
        """Until what is wanted is what every gateway sends requests to."""
        wait = service_waits.until_settled(self._client.found, self.name, timeout_s)
        return service_status_of(await waited(self._client, wait))

    async def predict(self, inputs: Any, **more: Any) -> dict[str, Any]:
        """The outputs by name; takes what `Service.predict` takes."""
        return await run(self._client, self._service.predict, inputs, **more)

    async def answer(self, inputs: Any, **more: Any) -> Answer:
        """As `predict`, with who gave the answer."""
        return await run(self._client, self._service.answer, inputs, **more)

    async def scale(self, replicas: int | None) -> None:
        """Have so many replicas; None: as many as its load asks for."""
        await run(self._client, self._service.scale, replicas)

    async def rollout(self, version: int | str | None = None) -> None:
        """Serve this version, or what this alias names, step by step."""
        await run(self._client, self._service.rollout, version)

    async def rollback(self) -> None:
        """Serve the version before, at once, until the next `rollout`."""
        await run(self._client, self._service.rollback)

    async def split(self, weights: Mapping[int, float]) -> None:
        """Serve several versions side by side, by weight."""
        await run(self._client, self._service.split, weights)

    async def add_key(self, *, operator: bool = False) -> str:
        """A new API key, told once."""
        return await run(self._client, self._service.add_key, operator=operator)

    async def remove_key(self, key: str) -> None:
        """Forget a key."""
        await run(self._client, self._service.remove_key, key)

    async def stop(self, timeout_s: float = UNSERVE_WAIT_S) -> None:
        """End it: its replicas answer what they have begun, and leave."""
        found = self._client.found
        await run(self._client, found.service, self.name)
        await waited(self._client, service_waits.until_stopped(found, self.name, timeout_s))
        await run(self._client, serving.end_processes, found)

"""Holdfast for Python programs: submit, watch, scale, serve, predict. See docs/python-api.md.

    from holdfast import Client

    with Client() as client:
        client.submit("train.py", workers=2).result()

`Client` waits on the caller's thread, `AsyncClient` in his loop; both do the same by the same code,
which the command line uses too. Above everything but `cli`, which it does not know; it prints
nothing. What is imported here is loaded when it is first used: `holdfast --help` needs none of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from holdfast.client.aio import AsyncClient, AsyncJob, AsyncService
    from holdfast.client.client import Client, PublishedModel
    from holdfast.client.job_status import JobStatus
    from holdfast.client.jobs import Job
    from holdfast.client.logs import LogLine
    from holdfast.client.predicting import Answer
    from holdfast.client.service_status import ServiceStatus
    from holdfast.client.services import Service
    from holdfast.wire.errors import JobFailed

__all__ = [
    "Answer",
    "AsyncClient",
    "AsyncJob",
    "AsyncService",
    "Client",
    "Job",
    "JobFailed",
    "JobStatus",
    "LogLine",
    "PublishedModel",
    "Service",
    "ServiceStatus",
]
_HOMES: Final = {
    "Answer": "holdfast.client.predicting",
    "AsyncClient": "holdfast.client.aio",
    "AsyncJob": "holdfast.client.aio",
    "AsyncService": "holdfast.client.aio",
    "Client": "holdfast.client.client",
    "Job": "holdfast.client.jobs",
    "JobFailed": "holdfast.wire.errors",
    "JobStatus": "holdfast.client.job_status",
    "LogLine": "holdfast.client.logs",
    "PublishedModel": "holdfast.client.client",
    "Service": "holdfast.client.services",
    "ServiceStatus": "holdfast.client.service_status",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)

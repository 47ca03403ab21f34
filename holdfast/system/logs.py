"""Logs that a person can read on a terminal and a machine can read as JSON lines.

    log = logs.get(__name__)
    log.info("the server listens", address=address)

Everything goes through the standard `logging` module: under a user's own program, that program's
set-up decides. Our commands call `set_up` once; then every line, also kazoo's, goes to stderr
(never stdout: that belongs to results), coloured on a terminal, plain text otherwise, and JSON
lines with `HOLDFAST_LOG=json`. The level is `HOLDFAST_LOG_LEVEL` or the command's option.

The text of a key that is named like a secret is masked. A number is not: a fencing token is one.

structlog is imported when the first line is written: it loads rich and what rich loads, a tenth of
a second at the start of every command and worker, most of which never write one.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Final, TextIO, cast

from holdfast.wire.errors import Usage

if TYPE_CHECKING:
    import structlog
    from structlog.types import EventDict, Processor

FORM_VARIABLE: Final = "HOLDFAST_LOG"
LEVEL_VARIABLE: Final = "HOLDFAST_LOG_LEVEL"
FORMS: Final = ("auto", "text", "json")
LEVELS: Final = ("debug", "info", "warning", "error", "critical")
MASK: Final = "***"

_SECRET_KEY: Final = re.compile(r"password|passwd|secret|token|credential|api_?key", re.IGNORECASE)
# In the text of a foreign line: kazoo's debug lines show what it sends, `auth='user:password'`.
_SECRET_TEXT: Final = re.compile(
    r"""\b(auth|password|passwd|secret|token)=(b?'(?:[^'\\]|\\.)*'|b?"(?:[^"\\]|\\.)*"|[^\s,)]+)""",
    re.IGNORECASE,
)


class _LogMessage:
    """An event with its keys: a dictionary for our formatter, a sentence for anybody else's."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.fields = dict(fields)

    def __str__(self) -> str:
        rest = [f"{key}={value!r}" for key, value in self.fields.items() if key != "event"]
        return " ".join([str(self.fields.get("event", "")), *rest])


class _Logger:
    """A logger that is made when it is first used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> Any:
        if method.startswith("__"):  # what `copy` and the like look for
            raise AttributeError(method)
        found = getattr(_bound(self._name), method)
        setattr(self, method, found)
        return found


class _Formatter(logging.Formatter):
    """Ours, made for the first line."""

    def __init__(self, form: str, *, colours: bool) -> None:
        super().__init__()
        self._form, self._colours = form, colours
        self._made: logging.Formatter | None = None

    def format(self, record: logging.LogRecord) -> str:
        if self._made is None:
            self._made = _formatter(self._form, colours=self._colours)
        return self._made.format(record)


def get(name: str) -> structlog.stdlib.BoundLogger:
    """The logger of a module: `log.info("what happened", key=value)`. Costs nothing until used."""
    return cast("structlog.stdlib.BoundLogger", _Logger(name))


def import_now() -> None:
    """Import what the first line needs: for a process that others are forked from."""
    import structlog  # noqa: F401, PLC0415


def _bound(name: str) -> structlog.stdlib.BoundLogger:
    import structlog  # noqa: PLC0415

    logger = structlog.wrap_logger(
        logging.getLogger(name),
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.PositionalArgumentsFormatter(),
            _mask_keys,
            _hand_over,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    return cast("structlog.stdlib.BoundLogger", logger)


def set_up(
    level: str | None = None, form: str | None = None, *, stream: TextIO | None = None
) -> None:
    """Send all logs of this process to stderr. Arguments win over the environment.

    Calling it again replaces what the last call did.
    """
    out = stream or sys.stderr
    level = _chosen("log level", level or os.environ.get(LEVEL_VARIABLE) or "info", LEVELS)
    form = _chosen("log form", form or os.environ.get(FORM_VARIABLE) or "auto", FORMS)
    handler = logging.StreamHandler(out)
    handler.setFormatter(_Formatter(form, colours=_is_terminal(out)))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # kazoo tells every attempt to connect: noise, unless somebody looks for a fault. What it means
    # for a session, the session says itself.
    for name in ("kazoo", "holdfast.coordination.kazoo"):
        logging.getLogger(name).setLevel("DEBUG" if level == "debug" else "ERROR")


def _formatter(form: str, *, colours: bool) -> logging.Formatter:
    import structlog  # noqa: PLC0415

    render: list[Processor]
    if form == "json":
        render = [
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(default=str),
        ]
        stamp = structlog.processors.TimeStamper(fmt="iso", utc=True)
    else:
        # Plain tracebacks: the fancy ones print local variables, and those may be secrets.
        plain = structlog.dev.plain_traceback
        render = [
            structlog.dev.ConsoleRenderer(colors=colours, pad_event_to=0, exception_formatter=plain)
        ]
        stamp = structlog.processors.TimeStamper(
            fmt="%H:%M:%S" if colours else "iso", utc=not colours
        )
    return structlog.stdlib.ProcessorFormatter(
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        foreign_pre_chain=[_take_over, structlog.stdlib.add_log_level, _add_name, stamp],
    )


def _hand_over(
    _logger: Any, _method: str, event: EventDict
) -> tuple[tuple[_LogMessage], dict[str, Any]]:
    """The last step of a logger of ours: one record for the standard module."""
    record = {key: event.pop(key) for key in ("exc_info", "stack_info") if key in event}
    return (_LogMessage(event),), record


def _take_over(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """The first step of the formatter: our keys come back; a foreign line is text to be masked."""
    record = cast("logging.LogRecord", event["_record"])
    if isinstance(record.msg, _LogMessage):
        event.update(record.msg.fields)
    else:
        event["event"] = _SECRET_TEXT.sub(rf"\1={MASK}", str(event.get("event", "")))
    return event


def _add_name(_logger: Any, _method: str, event: EventDict) -> EventDict:
    record = cast("logging.LogRecord", event["_record"])
    event.setdefault("logger", record.name)
    return event


def _mask_keys(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    return {key: _masked(key, value) for key, value in event.items()}


def _masked(key: object, value: object) -> object:
    if isinstance(value, Mapping):
        return {inner: _masked(inner, held) for inner, held in value.items()}
    if isinstance(value, int | float | None):
        return value
    return MASK if _SECRET_KEY.search(str(key)) else value


def _is_terminal(stream: TextIO) -> bool:
    return stream.isatty() and "NO_COLOR" not in os.environ


def _chosen(what: str, value: str, known: tuple[str, ...]) -> str:
    value = value.lower()
    if value not in known:
        raise Usage(f"{value!r} is not a {what}", fix=f"use one of: {', '.join(known)}")
    return value

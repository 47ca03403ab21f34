"""A condition on a record, as people write it: `value.amount > 100 and headers.kind == "order"`.

    condition = parse_filter('value.country in ["de", "fr"]')
    condition.matches(ParsedRecord(value={"country": "de"}))      # True

Small and safe: it is parsed here and never given to Python. What it can name: `value` (JSON) and
what is in it (`value.user.id`, `value.items[0]`, `value["a b"]`), `key` and `headers.NAME` (text),
`partition`, `offset`, `at` (milliseconds). Texts in quotes, numbers, true, false, null and lists of
them; `== != < <= > >= in`, `and or not` and brackets. What is not there is null. Values of
different kinds are not equal, and no order is true of them: a strange record raises nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.wire.errors import Usage

FILTER_CHARACTERS_MAX: Final = 2_000
# Brackets and `not` within each other; a person writes three.
_DEPTH_MAX: Final = 32
_NAMES: Final = ("value", "key", "headers", "partition", "offset", "at")
_WORDS: Final = {"true": True, "false": False, "null": None}
_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)
    |(?P<text>"(?:[^"\\]|\\.)*"|'[^'\\]*')
    |(?P<name>[A-Za-z_][A-Za-z0-9_-]*)
    |(?P<sign>==|!=|<=|>=|[<>()\[\],.]))""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class ParsedRecord:
    """What a condition looks at. `value`: decoded JSON, None where it is none."""

    value: Any = None
    key: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    partition: int = 0
    offset: int = 0
    at: int = 0


Evaluate = Callable[[ParsedRecord], Any]


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """A condition that was read. `reads_value`: whether it looks into the value at all."""

    text: str
    reads_value: bool
    _holds: Evaluate

    def matches(self, record: ParsedRecord) -> bool:
        """Whether the condition is true of it. A value alone counts if it is true, or a number but
        0, or a text or list that is not empty."""
        return bool(self._holds(record))


def parse_filter(text: str) -> RecordFilter:
    """The condition; `Usage`, with the place, if it is none."""
    if len(text) > FILTER_CHARACTERS_MAX:
        raise _wrong(text[:80], f"it has more than {FILTER_CHARACTERS_MAX} characters")
    parser = _Parser(text)
    holds = parser.either(0)
    parser.end()
    return RecordFilter(text, parser.reads_value, holds)


def json_or_none(data: bytes | str | None) -> Any:
    """The JSON value in these bytes; None if it is none."""
    try:
        return None if data is None else json.loads(data)
    except (ValueError, RecursionError):
        return None


class _Parser:
    """Recursive descent over the tokens; each method reads a level and gives what evaluates it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.reads_value = False
        self._tokens = _tokens(text)
        self._at = 0

    def either(self, depth: int) -> Evaluate:
        parts = [self._both(depth)]
        while self._takes("or"):
            parts.append(self._both(depth))
        return parts[0] if len(parts) == 1 else lambda r: any(part(r) for part in parts)

    def end(self) -> None:
        if self._at < len(self._tokens):
            raise self._unexpected("and, or, or its end")

    def _both(self, depth: int) -> Evaluate:
        parts = [self._not(depth)]
        while self._takes("and"):
            parts.append(self._not(depth))
        return parts[0] if len(parts) == 1 else lambda r: all(part(r) for part in parts)

    def _not(self, depth: int) -> Evaluate:
        if depth > _DEPTH_MAX:
            raise self._unexpected(f"at most {_DEPTH_MAX} brackets within each other")
        if self._takes("not"):
            inner = self._not(depth + 1)
            return lambda r: not inner(r)
        if self._takes("("):
            inner = self.either(depth + 1)
            self._expect(")")
            return inner
        return self._comparison()

    def _comparison(self) -> Evaluate:
        left = self._operand()
        for sign, compare in _COMPARED.items():
            if self._takes(sign):
                right = self._operand()
                return lambda r: compare(left(r), right(r))
        return left

    def _operand(self) -> Evaluate:
        kind, token, _ = self._peek()
        if self._takes("["):
            return self._list()
        if kind in ("number", "text") or token in _WORDS:
            self._at += 1
            value = _literal(kind, token)
            return lambda r: value
        if token in _NAMES:
            self._at += 1
            return self._path(token)
        raise self._unexpected(f"a value, or one of {', '.join(_NAMES)}")

    def _list(self) -> Evaluate:
        found: list[Any] = []
        while not self._takes("]"):
            kind, token, _ = self._peek()
            if kind not in ("number", "text") and token not in _WORDS:
                raise self._unexpected("a text, a number, true, false or null")
            self._at += 1
            found.append(_literal(kind, token))
            if not self._takes(","):
                self._expect("]")
                break
        return lambda r: found

    def _path(self, name: str) -> Evaluate:
        self.reads_value = self.reads_value or name == "value"
        steps: list[str | int] = []
        while True:
            if self._takes("."):
                kind, token, _ = self._peek()
                if kind != "name":
                    raise self._unexpected("a name")
                steps.append(token)
            elif self._takes("["):
                kind, token, _ = self._peek()
                if kind not in ("text", "number") or ("." in token and kind == "number"):
                    raise self._unexpected(
                        'a name in quotes, such as ["a b"], or a place, such as [0]'
                    )
                step = _literal(kind, token)
                assert isinstance(step, str | int)
                steps.append(step)
                self._at += 1
                self._expect("]")
                continue
            else:
                break
            self._at += 1
        return lambda r: _found(getattr(r, name), steps)

    def _peek(self) -> tuple[str, str, int]:
        if self._at < len(self._tokens):
            return self._tokens[self._at]
        return "", "", len(self.text)

    def _takes(self, token: str) -> bool:
        kind, found, _ = self._peek()
        if found == token and kind in ("name", "sign"):
            self._at += 1
            return True
        return False

    def _expect(self, token: str) -> None:
        if not self._takes(token):
            raise self._unexpected(f"`{token}`")

    def _unexpected(self, expected: str) -> Usage:
        _, token, place = self._peek()
        found = f"`{token}`" if token else "its end"
        return _wrong(self.text, f"{expected} is expected at character {place + 1}, not {found}")


def _tokens(text: str) -> list[tuple[str, str, int]]:
    found, place = [], 0
    while text[place:].strip():
        matched = _TOKEN.match(text, place)
        if matched is None or matched.lastgroup is None:
            raise _wrong(text, f"character {place + 1} cannot be read: {text[place:][:10]!r}")
        kind = matched.lastgroup
        found.append((kind, matched[kind], matched.start(kind)))
        place = matched.end()
    return found


def _literal(kind: str, token: str) -> Any:
    if kind == "text":
        if token[0] == "'":
            return token[1:-1]
        try:
            return json.loads(token)
        except ValueError:
            raise _wrong(token, "a text in quotes has an escape that JSON does not know") from None
    return json.loads(token) if kind == "number" else _WORDS[token]


def _found(value: Any, steps: list[str | int]) -> Any:
    for step in steps:
        if isinstance(step, int):
            inside = isinstance(value, list) and -len(value) <= step < len(value)
            value = value[step] if inside else None
        else:
            value = value.get(step) if isinstance(value, Mapping) else None
    return value


def _same(left: Any, right: Any) -> bool:
    # True and 1 are one in Python, and not in JSON.
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def held(left: Any, right: Any) -> bool:
        numbers = all(isinstance(e, int | float) and not isinstance(e, bool) for e in (left, right))
        texts = isinstance(left, str) and isinstance(right, str)
        return (numbers or texts) and compare(left, right)

    return held


def _within(left: Any, right: Any) -> bool:
    if isinstance(right, list):
        return any(_same(left, each) for each in right)
    if isinstance(right, Mapping):
        return isinstance(left, str) and left in right
    return isinstance(left, str) and isinstance(right, str) and left in right


_COMPARED: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "==": _same,
    "!=": lambda left, right: not _same(left, right),
    "<=": _ordered(lambda left, right: left <= right),
    ">=": _ordered(lambda left, right: left >= right),
    "<": _ordered(lambda left, right: left < right),
    ">": _ordered(lambda left, right: left > right),
    "in": _within,
}


def _wrong(text: str, why: str) -> Usage:
    return Usage(
        f"this is not a filter: {text}",
        why=why,
        fix="such as: value.amount > 100 and headers.kind == 'order'",
    )

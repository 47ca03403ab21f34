"""The job's settings, as the script sees them: typed, with defaults, live.

    lr = run.settings.get("lr", 1e-3)      # the default also says of which type it is
    run.settings.lr                        # what the job says; an error with a hint if it does not

A value that is changed while the job runs (`holdfast set JOB lr=0.01`) is seen by every lane from
the same step on. Whether anybody reads it then is noted: a script that has copied a value at its
start goes on with the old one.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.wire.errors import Usage
from holdfast.wire.reports import SETTING_METRIC


class Settings(Mapping[str, Any]):
    """Values by name. What is written `true`, `3`, `1e-3` is a truth, a whole number, a number."""

    def __init__(self, defaults: Mapping[str, Any] | None = None) -> None:
        self._defaults = dict(defaults or {})
        self._texts: dict[str, str] = {}
        self._begun = False  # whether there were settings before
        self.changes = 0  # while this is the same, so is every value
        self._changed: dict[str, bool] = {}  # since then: name -> whether it was read

    def take(self, texts: Mapping[str, str]) -> None:
        """These are in effect now."""
        for name, text in texts.items() if self._begun else ():
            if self._texts.get(name) != text:
                self._changed[name] = False
        self._texts, self._begun = dict(texts), True
        self.changes += 1

    def given(self, name: str) -> Any:
        """The value that the job says; None: it says nothing, whatever the defaults are."""
        return self[name] if name in self._texts else None

    def took(self, name: str) -> None:
        """Something of ours has taken the value of this setting."""
        if name in self._changed:
            self._changed[name] = True

    def metrics(self) -> dict[str, float]:
        """For people: what was changed since the start, and whether anything has taken it."""
        return {f"{SETTING_METRIC}{name}": float(took) for name, took in self._changed.items()}

    def typed(self, name: str, text: str) -> Any:
        """What this text would be as the value of this setting."""
        return _typed(name, text, self._defaults.get(name))

    def get(self, name: str, default: Any = None) -> Any:
        """The value, or the default. The default's type is the value's type from then on."""
        if default is not None and name not in self._defaults:
            self._defaults[name] = default
            self.changes += 1
        return super().get(name, default)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in self:
            near = difflib.get_close_matches(name, list(self), n=1)
            hint = f" (it has {near[0]!r})" if near else ""
            raise Usage(
                f"the job has no setting {name!r}{hint}",
                why="neither the job nor train.launch(..., settings={...}) gives it a value",
                fix=f"give it a default: run.settings.get({name!r}, VALUE)",
            )
        return self[name]

    def __getitem__(self, name: str) -> Any:
        if name not in self._texts:
            return self._defaults[name]
        self.took(name)
        return self.typed(name, self._texts[name])

    def __contains__(self, name: object) -> bool:
        return name in self._texts or name in self._defaults

    def __iter__(self) -> Iterator[str]:
        return iter({**self._defaults, **self._texts})

    def __len__(self) -> int:
        return len({**self._defaults, **self._texts})


def _typed(name: str, text: str, like: Any) -> Any:
    if isinstance(like, str):
        return text
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    if isinstance(value, str):
        # `1e-3` is no JSON of its own accord in every spelling; Python's rule is wider.
        try:
            value = float(text)
        except ValueError:
            value = {"true": True, "yes": True, "false": False, "no": False}.get(text.lower(), text)
    if isinstance(like, bool) and isinstance(value, bool):
        return value
    if isinstance(like, float) and isinstance(value, (int, float)):
        return float(value)
    if like is None or (type(like) is type(value)):
        return value
    raise Usage(
        f"the setting {name}={text!r} is not a {type(like).__name__}",
        why=f"its default is {like!r}",
        fix=f"holdfast set JOB {name}=VALUE, with a {type(like).__name__}",
    )

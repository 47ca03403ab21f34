"""Names of models and aliases, and references to versions. Pure."""

from __future__ import annotations

import re
from typing import Final

from holdfast.wire.errors import Usage

# It becomes a part of paths, of clusters' names and of headers.
MODEL_NAME_CHARACTERS_MAX: Final = 63

PROD: Final = "prod"  # what a model's plain name means, once there is one
_MODEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# An alias begins with a letter: so it is never taken for a number.
_ALIAS: Final = re.compile(r"[A-Za-z][A-Za-z0-9._-]*")


def check_model(name: str) -> str:
    return _checked("model", name, _MODEL, "beginning with a letter or a digit")


def check_alias(name: str) -> str:
    return _checked("alias", name, _ALIAS, "beginning with a letter")


def split_reference(reference: str) -> tuple[str, str | int | None]:
    """`MODEL`, `MODEL@ALIAS` or `MODEL@NUMBER`: the model, and what was asked of it."""
    model, at, which = reference.partition("@")
    check_model(model)
    if not at:
        return model, None
    if which.isascii() and which.isdecimal():
        return model, int(which)
    return model, check_alias(which)


def _checked(what: str, name: str, pattern: re.Pattern[str], begin: str) -> str:
    if len(name) > MODEL_NAME_CHARACTERS_MAX or not pattern.fullmatch(name):
        kind = "an" if what[0] in "aeiou" else "a"
        raise Usage(
            f"not the name of {kind} {what}: {name[:100]!r}",
            fix=f"use at most {MODEL_NAME_CHARACTERS_MAX} letters, digits, dots, dashes and"
            f" underscores, {begin}",
        )
    return name

"""Counting the uses of join and standby tokens, and giving each name to one machine.

    /holdfast/tokens/NUMBER   who has used a token, and when it ends
    /holdfast/names/NODE      which request a name was given to

A use is one transaction in the coordination plane, together with the name that it takes: of two
coordinators that are shown the same token at once, one is refused. A request that comes again (its
answer was lost, or another endpoint was tried) is the same use: it is known by its digest, which
holds the key that only its machine has.

A name that a living node has is given to nobody. One that a node has had is given only for a token
that was made for this very name: whoever gets it gets what is meant for that node.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from holdfast.control.store.layout import ROOT
from holdfast.coordination import Fact, Facts, Membership, Session
from holdfast.wire.errors import Conflict, Corrupt, HoldfastError, Refused, Unavailable
from holdfast.wire.limits import CLOCK_DIFFERENCE_S
from holdfast.wire.names import NODES_PATH
from holdfast.wire.tokens import Token, TokenKind

# Uses of one token that meet are counted one after the other: each loses to another one at most so
# often before it is asked to come again.
JOIN_ATTEMPTS: Final = 100

TOKENS: Final = f"{ROOT}/tokens"
NAMES: Final = f"{ROOT}/names"


@dataclass(frozen=True, slots=True)
class Use:
    """A token is shown by somebody who asks for `name`. `request` names what is asked, and is the
    same when it is asked again. `of_node`: the name is a node's, and is taken with it."""

    token: Token
    name: str
    request: str
    of_node: bool


@dataclass(frozen=True, slots=True)
class KnownJoins:
    """What the plane says: who used the token, who was given the name, whether a node has it now,
    and whether one ever had it."""

    users: tuple[tuple[str, str], ...]  # (request, name)
    given_to: str | None
    lives: bool
    lived: bool


def judged(use: Use, known: KnownJoins) -> bool:
    """Whether it is the first time: it has to be counted. `Refused` if it may not be."""
    token = use.token
    if (use.request, use.name) in known.users:
        return False
    if not token.number:
        raise _refused(token, "it was made by an older version, which did not number tokens")
    if len(known.users) >= token.uses:
        by = ", ".join(name for _, name in known.users)
        times = "once" if token.uses == 1 else f"{token.uses} times"
        raise _refused(token, f"it may be used {times}, and was: by {by}")
    if use.of_node:
        _check_name(use, known)
    return True


def joined_nodes(session: Session) -> list[str]:
    """Every machine that has joined with a token, whether it is here or not."""
    return sorted(Facts(session).names(NAMES))


class Joins:
    """The uses of tokens in a coordination plane. It blocks: for a thread."""

    def __init__(self, session: Session, now_s: Callable[[], float] = time.time) -> None:
        self._facts = Facts(session)
        self._nodes = Membership(session, NODES_PATH)
        self._now_s = now_s

    def count(self, use: Use) -> None:
        """Count this use of a token; `Refused`: it may not be used for this (any more)."""
        for _ in range(JOIN_ATTEMPTS):
            try:
                self._count(use)
            except Conflict:
                continue  # another one was counted first: look again
            self._forget_ended()
            return
        raise Unavailable("too many join at once", fix="try again")

    def _count(self, use: Use) -> None:
        token_path, name_path = f"{TOKENS}/{use.token.number}", f"{NAMES}/{use.name}"
        before, given = self._read(token_path), self._read(name_path) if use.of_node else None
        users = tuple((str(one["request"]), str(one["name"])) for one in _value(before, "uses", []))
        lives, lived = self._nodes.seen(use.name) if use.of_node else (False, False)
        if not judged(use, KnownJoins(users, _value(given, "request", None), lives, lived)):
            return
        used = [{"request": request, "name": name} for request, name in users]
        used.append({"request": use.request, "name": use.name})
        document = _encoded({"until_s": use.token.until_s, "uses": used})

        def happened() -> bool:
            found = _value(self._read(token_path), "uses", [])
            return any(one["request"] == use.request for one in found)

        transaction = self._facts.transaction(happened)
        writes = [(token_path, before, document)]
        if use.of_node:
            writes.append((name_path, given, _encoded({"request": use.request})))
        for path, fact, data in writes:
            if fact is None:
                transaction.create(path, data)
            else:
                transaction.replace(path, data, fact.version)
        transaction.commit()

    def _read(self, path: str) -> Fact | None:
        return self._facts.read(path, fresh=True)

    def _forget_ended(self) -> None:
        """Tokens that have ended are refused for that: who used them need not be known."""
        try:
            paths = [f"{TOKENS}/{number}" for number in self._facts.names(TOKENS)]
            for path, fact in self._facts.read_all(paths).items():
                if _value(fact, "until_s", 0.0) + CLOCK_DIFFERENCE_S < self._now_s():
                    self._facts.transaction(lambda: True).remove(path, fact.version).commit()
        except HoldfastError:
            return  # the next one does it


def _check_name(use: Use, known: KnownJoins) -> None:
    if known.lives:
        raise Refused(
            f"a node named {use.name} is in the cluster, and lives",
            why="a name belongs to one machine at a time",
            fix="join under another name (--node NAME), or end that node first (holdfast down)",
        )
    was_given = known.given_to not in (None, use.request)
    if (known.lived or was_given) and use.token.node != use.name:
        raise Refused(
            f"the name {use.name} was given to a machine before",
            why="this token is for new names only",
            fix=f"holdfast token --node {use.name}, if this machine takes its place; "
            "or join under another name: --node NAME",
        )


def _refused(token: Token, why: str) -> Refused:
    more = " --standby" if token.kind is TokenKind.STANDBY else ""
    return Refused(
        f"this {token.kind.value} token does not hold any more",
        why=why,
        fix=f"make another one: holdfast token{more} (for several machines: --uses N)",
    )


def _encoded(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _value(fact: Fact | None, key: str, default: Any) -> Any:
    if fact is None:
        return default
    try:
        return json.loads(fact.data)[key]
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt("a record of who joined cannot be read", why=repr(error)) from error

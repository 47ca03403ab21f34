"""A process that wants to lead, and writes facts while it does.

    python examples/contender.py NAME ADDRESS

It is the shortest useful program on Holdfast's coordination plane: campaign, lead, write through
the leader's transaction, stop when told that the term is over. It prints one JSON line for each
thing that happens, and ends when its standard input does (so it never outlives who started it).
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time

from holdfast.coordination import Election, Leadership, connect
from holdfast.wire.errors import Fenced, RetryError, SessionLost

ELECTION = "/demo/leader"
FACTS = "/demo/facts"
PAUSE_S = 0.02


def tell(event: str, **details: object) -> None:
    """One line to whoever started us."""
    print(json.dumps({"event": event, **details}), flush=True)


def lead(name: str, leadership: Leadership) -> None:
    """Write facts, one after the other, until the term is over."""
    term = leadership.term
    for number in itertools.count(1):
        fact = f"{term:04d}-{number:05d}"
        try:
            leadership.transaction().create(f"{FACTS}/{fact}", name.encode()).commit()
        except Fenced as error:
            tell("fenced", term=term, fact=fact, acting=leadership.acting, why=error.why)
            return
        except RetryError:
            tell("unsure", term=term, fact=fact)  # no server: it may or may not have happened
        else:
            tell("wrote", term=term, fact=fact)
        time.sleep(PAUSE_S)


def main(name: str, address: str) -> None:
    with connect(address) as session:
        election = Election(session, ELECTION, name)
        while True:
            tell("waits", session=session.session_id)
            try:
                leadership = election.campaign()
            except (RetryError, SessionLost, Fenced):
                continue  # the session ended while we waited; a new one has begun
            tell("leads", term=leadership.term, session=session.session_id)
            lead(name, leadership)


def end_with_our_starter() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=end_with_our_starter, daemon=True).start()
    main(*sys.argv[1:])

"""A coordinator in a process of its own, as small as can be: it leads, and orders each agent that
it hears of to start one worker, whose number is the term. Says on stdout what it knows."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from holdfast.control.decide.facts import ObservedState
from holdfast.control.rpc.agents import GrpcAgents
from holdfast.coordination import Election, connect
from holdfast.system.certificates import Authority
from holdfast.wire.rpc import LEADER_PATH
from tests.contract.rpc_world import decided, start


def _say(**words: object) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


def _known(observed: ObservedState) -> dict[str, list[int]]:
    return {
        node: sorted(worker.worker for worker in facts.workers)
        for node, facts in observed.nodes.items()
    }


def run(plane: str, authority: Path) -> None:
    with connect(plane) as session:
        election = Election(session, LEADER_PATH)
        with GrpcAgents.start(session, Authority.open(authority)) as agents:
            _say(endpoint=agents.join_address)
            leadership = election.campaign()
            term = leadership.term
            agents.begin(term)
            _say(term=term)
            sent: dict[str, int] = {}
            while True:
                agents.wait(0.5)
                observed = agents.observed()
                for node, workers in _known(observed).items():
                    connection = agents.connection(node)
                    if term not in workers and connection and sent.get(node) != connection:
                        sent[node] = connection
                        agents.order(term, decided(start(node, term)))
                _say(term=term, known=_known(observed), unreported=sorted(observed.unreported))


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]))

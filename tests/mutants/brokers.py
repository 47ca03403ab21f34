"""Six promises of the broker, each broken: the proof of topics must see it from outside."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant, without

_PROOF: Final = "tests/test_topics_proof.py"
_CORE: Final = "holdfast/topics/broker/core"
_JOURNAL: Final = "holdfast/topics/broker/disk/journal.py"

MUTANTS: Final = (
    without(
        "broker-answers-before-the-sync",
        _JOURNAL,
        "            os.fdatasync(self._handle)\n",
        "os.fdatasync(self._handle)",
        _PROOF,
    ),
    Mutant(
        "broker-does-not-check-sequences",
        f"{_CORE}/state.py",
        """            sent = partition.duplicate_of(header)
            if sent is not None:
                stamped = sent.timestamp if topic.settings.append_time else -1
                return CommandOutcome(
                    value=Appended(sent.base_offset, stamped, partition.log_start)
                )
            partition.check_sequence(header)
""",
        "",
        _PROOF,
    ),
    Mutant(
        "broker-does-not-check-epochs",
        f"{_CORE}/transactions.py",
        "        if held.epoch != epoch:\n",
        "        if held.epoch < epoch:\n",
        _PROOF,
    ),
    Mutant(
        "broker-tells-of-no-aborted-transactions",
        f"{_CORE}/partition.py",
        "        return sorted(found, key=lambda one: one.first_offset)\n",
        "        return found[:0]\n",
        _PROOF,
    ),
    Mutant(
        "broker-gives-a-partition-to-two-in-a-generation",
        f"{_CORE}/group.py",
        "        self.generation += 1\n",
        "        self.generation = 1\n",
        _PROOF,
    ),
    Mutant(
        "broker-keeps-a-torn-tail",
        _JOURNAL,
        "        if stands != at or len(payload) != size or crc(payload, before) != after:\n",
        "        if stands != at:\n",
        _PROOF,
    ),
)

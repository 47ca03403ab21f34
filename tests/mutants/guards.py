"""Each condition that keeps what is needed, or keeps two from overwriting one another, removed."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

# The same tests run over a real ZooKeeper too; one plane is enough to find these.
_FENCE: Final = "tests/contract/test_fence.py -k embedded"
_ORDER: Final = "tests/contract/test_watch_order.py -k embedded"
_VERSIONS: Final = "tests/contract/test_versions.py -k embedded"
_RACES: Final = "tests/unit/models/test_races.py"
_HOUSE: Final = "tests/integration/test_cluster_housekeeping.py"
_NODES: Final = "holdfast/coordination/nodes.py"
_ELECTION: Final = "holdfast/coordination/election.py"
_REGISTRY: Final = "holdfast/models/registry.py"
_LEDGER: Final = "holdfast/control/store/ledger.py"
_MIRROR: Final = "holdfast/coordination/mirror.py"
_MIRRORING: Final = "tests/contract/test_mirror.py -k embedded"

_GARBAGE: Final = (
    Mutant(
        "sweep-forgets-jobs-without-placements",
        "holdfast/control/shell/housekeeping.py",
        "for job in jobs for checkpoint in job.checkpoints}",
        "for job in jobs if job.placements for checkpoint in job.checkpoints}",
        _HOUSE,
    ),
    Mutant(
        "sweep-forgets-jobs-that-have-ended",
        "holdfast/control/shell/housekeeping.py",
        "for job in jobs for checkpoint in job.checkpoints}",
        "for job in jobs if not job.status.phase.final for checkpoint in job.checkpoints}",
        _HOUSE,
    ),
    Mutant(
        "sweep-forgets-jobs-whose-workers-nobody-sees",
        "holdfast/control/shell/housekeeping.py",
        "for job in jobs for checkpoint in job.checkpoints}",
        """for job in jobs for checkpoint in job.checkpoints
        if any(w.job == job.name for n in observed.nodes.values() for w in n.workers)}""",
        _HOUSE,
    ),
    Mutant(
        "sweep-forgets-the-parts-of-manifests",
        "holdfast/storage/garbage.py",
        "        needed.update(part.key for _, part in manifest.parts())\n",
        "",
        _HOUSE,
    ),
)

_REMOVING: Final = (
    Mutant(
        "removal-in-the-middle-of-a-commit",
        "holdfast/storage/claims.py",
        "            free = not self._needed[key]\n",
        "            free = True\n",
        "tests/unit/storage/test_removals.py",
    ),
    Mutant(
        "commit-in-the-middle-of-a-removal",
        "holdfast/control/store/manifests.py",
        "claims.needing({manifest_key(manifest), *(part.key for _, part in manifest.parts())})",
        "Claims().needing(())",
        "tests/unit/storage/test_removals.py",
    ),
    Mutant(
        "old-part-not-written-again",
        "holdfast/storage/parts.py",
        "if there is None or there.size_bytes != part.size_bytes or not young:",
        "if there is None or there.size_bytes != part.size_bytes:",
        "tests/unit/storage/test_garbage.py",
    ),
)

_JOBS: Final = (
    Mutant(
        "job-node-replaced-at-any-version",
        _LEDGER,
        "            transaction.replace(path, data, versions[path])\n",
        "            transaction.replace(path, data)\n",
        _VERSIONS,
    ),
    Mutant(
        "commit-record-removed-at-any-version",
        _LEDGER,
        "            transaction.remove(path, versions.pop(path))\n",
        "            versions.pop(path)\n            transaction.remove(path)\n",
        _VERSIONS,
    ),
    Mutant(
        "job-state-checked-at-any-version",
        _LEDGER,
        "            transaction.check(path, filed.versions[path])\n",
        "            transaction.check(path)\n",
        _VERSIONS,
    ),
    Mutant(
        "history-replaced-at-any-version",
        "holdfast/control/store/history.py",
        "        transaction.replace(path, data, version)\n",
        "        transaction.replace(path, data)\n",
        _VERSIONS,
    ),
    Mutant(
        "desired-spec-replaced-at-any-version",
        "holdfast/coordination/config.py",
        "            transaction.replace(self.path, data, expect)\n",
        "            transaction.replace(self.path, data)\n",
        _VERSIONS,
    ),
    Mutant(
        "words-replaced-at-any-version",
        "holdfast/control/store/audit.py",
        "            transaction.replace(path, data, fact.version)\n",
        "            transaction.replace(path, data)\n",
        _VERSIONS,
    ),
    Mutant(
        "job-removed-at-any-version",
        "holdfast/control/store/job_nodes.py",
        "    transaction.remove(state, filed.versions[state])\n",
        "    transaction.remove(state)\n",
        _VERSIONS,
    ),
    Mutant(
        "range-of-a-trigger-begins-anywhere",
        "holdfast/control/decide/records.py",
        "        if positions[each.partition] != each.first or each.count < 1:\n",
        "        if each.count < 1:\n",
        "tests/unit/control/test_triggers.py",
    ),
    Mutant(
        "trigger-goes-on-where-a-topic-has-lost-its-end",
        "holdfast/control/decide/triggers.py",
        "    return fewer or any(map(int.__lt__, offsets.ends, state.positions))\n",
        "    return fewer\n",
        "tests/unit/control/test_triggers.py",
    ),
    Mutant(
        "configuration-written-at-any-version",
        "holdfast/coordination/config.py",
        """nodes.transact([Op("put", self.path, data, version)], deadline)""",
        """nodes.transact([Op("put", self.path, data)], deadline)""",
        "tests/contract/test_config.py -k embedded",
    ),
)

_MODELS: Final = (
    Mutant(
        "model-changed-at-any-version",
        _REGISTRY,
        "        return transaction.replace(path, to_bytes(after), seen.revision)\n",
        "        return transaction.replace(path, to_bytes(after))\n",
        _RACES,
    ),
    Mutant(
        "alias-set-and-nothing-checked",
        _REGISTRY,
        """        transaction = self._begin(seen, change, happened)
        transaction.check(records.version_path(model, number), revision)
""",
        "        transaction = self._facts.transaction(happened)\n",
        _RACES,
    ),
)

_WATCHES: Final = (
    Mutant(
        "watch-after-the-read",
        _NODES,
        "            return self.client.get_async(full, watch=watch)\n",
        """            answer = self.client.get_async(full)
            answer.wait()
            if watch:
                self.client.exists_async(full, watch=watch)
            return answer
""",
        _ORDER,
    ),
    Mutant(
        "watch-after-the-listing",
        _NODES,
        "                    get = partial(names, full, watch=watch)\n",
        """                    def get(watch: Any = watch) -> Any:
                        answer = names(full)
                        answer.wait()
                        if watch:
                            names(full, watch=watch)
                        return answer
""",
        _ORDER,
    ),
    Mutant(
        "watch-of-several-after-the-read",
        _NODES,
        "            return Together([ask(at, watch=watch) for at, watch in watched])\n",
        """            answers = Together([ask(at) for at, _ in watched])
            for at, watch in watched:
                ask(at, watch=watch)
            return answers
""",
        _ORDER,
    ),
    Mutant(
        "watch-for-the-end-after-the-look",
        _NODES,
        "self.persist(lambda: get(full, watch=watch), doing, deadline, lease, missing)",
        """self.persist(lambda: get(full), doing, deadline, lease, missing)
            self.client.exists_async(full, watch=watch)""",
        _ORDER,
    ),
    Mutant(
        "node-made-before-the-watch-not-read",
        _NODES,
        """                    if wake is None or not self.persist(
                        lambda: self.client.exists_async(full, watch=watch), doing, deadline, lease
                    ):
                        return None
""",
        """                    if wake is not None:
                        self.persist(
                            lambda: self.client.exists_async(full, watch=watch), doing
                        )
                    return None
""",
        _ORDER,
    ),
    Mutant(
        "wake-forgotten-after-the-read",
        "holdfast/coordination/follow.py",
        """                present = self._read(self._wake.set)
""",
        """                present = self._read(self._wake.set)
                self._wake.clear()
""",
        "tests/unit/coordination/test_follow.py",
    ),
    Mutant(
        "mirror-without-the-watch-of-a-value",
        _MIRROR,
        "            (one, self._watch(_VALUE, path) if one in watched[path] else None)\n",
        "            (one, None)\n",
        _MIRRORING,
    ),
    Mutant(
        "mirror-forgets-what-rang-while-it-read",
        _MIRROR,
        "                self._read(todo)\n",
        "                self._read(todo)\n                self._dirty.clear()\n",
        _MIRRORING,
    ),
    Mutant(
        "mirror-keeps-the-watches-of-what-is-gone",
        _MIRROR,
        "        self._forget(gone)\n",
        "",
        _MIRRORING,
    ),
    Mutant(
        "mirror-of-an-old-session",
        _MIRROR,
        "        if not session or session != self._read_in:\n",
        "        if not self._read_in:\n",
        _MIRRORING,
    ),
)

_LEADERS: Final = (
    Mutant(
        "leader-node-written-at-any-version",
        _ELECTION,
        """                Op("put", place.path, place.data, version=done),\n""",
        """                Op("put", place.path, place.data),\n""",
        _FENCE,
    ),
    Mutant(
        "fence-without-its-term",
        _ELECTION,
        """                Op("check", self._term_path, version=self.term),\n""",
        "",
        _FENCE,
    ),
    Mutant(
        "fence-with-any-term",
        _ELECTION,
        """                Op("check", self._term_path, version=self.term),\n""",
        """                Op("check", self._term_path),\n""",
        _FENCE,
    ),
    Mutant(
        "fence-without-its-node",
        _ELECTION,
        """                Op("put", place.path, place.data, version=done),\n""",
        "",
        _FENCE,
    ),
    Mutant(
        "term-taken-at-any-version",
        _ELECTION,
        """                    Op("put", self._term_path, data, version=node.version),\n""",
        """                    Op("put", self._term_path, data),\n""",
        _FENCE,
    ),
    Mutant(
        "term-taken-without-a-place-in-line",
        _ELECTION,
        """                    Op("check", place.path),\n""",
        """                    Op("check", self._term_path),\n""",
        _FENCE,
    ),
)

MUTANTS: Final = (*_GARBAGE, *_REMOVING, *_JOBS, *_MODELS, *_WATCHES, *_LEADERS)

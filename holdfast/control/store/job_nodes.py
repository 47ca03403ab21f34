"""The nodes of a job, as a whole: made together and removed together, each within a transaction of
whoever does it (a user, or the leader for the jobs of a trigger)."""

from __future__ import annotations

from holdfast.control.decide.facts import DesiredSpec
from holdfast.control.store import codec, layout
from holdfast.control.store.codec import JobState
from holdfast.control.store.layout import StoredJob
from holdfast.coordination import ABSENT, Config, Facts, Session, Transaction, stamps
from holdfast.events.records import JOB
from holdfast.events.removals import last_zxid, note_removed


def create_in(
    transaction: Transaction, session: Session, desired: DesiredSpec, state: JobState
) -> None:
    """Make them all; the transaction fails if there is a job of that name."""
    name = desired.spec.name
    specs = Config(session, layout.job_path(name))
    specs.put_in(transaction, codec.desired_spec_to(desired), ABSENT)
    settings = stamps.EMPTY.written(codec.settings_to(()), stamps.new_stamp())
    path = layout.settings_path(name)
    transaction.create(layout.state_path(name), codec.state_to(state))
    transaction.create(path, settings.encoded(path))
    for parent in (layout.placements_path, layout.checkpoints_path, layout.history_path):
        transaction.create(parent(name), b"")


def remove_in(transaction: Transaction, facts: Facts, filed: StoredJob, at_s: float) -> None:
    """Remove them all, if its state is still what was read. Its last number is retired before."""
    name = filed.job.name
    state, top = layout.state_path(name), layout.job_path(name)
    transaction.remove(state, filed.versions[state])
    rest = [path for path in filed.versions if path not in (state, top)]
    history = layout.history_path(name)
    rest += [f"{history}/{page}" for page in facts.names(history)]
    asked = layout.audit_path(name)
    rest += [asked] if facts.read(asked) is not None else []
    note_removed(facts, transaction, JOB, name, last_zxid(facts, history, asked), at_s)
    for path in rest:
        transaction.remove(path)
    for parent in (history, layout.checkpoints_path(name), layout.placements_path(name), top):
        transaction.remove(parent)

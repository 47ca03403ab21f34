"""Bounds of deciding about jobs."""

from __future__ import annotations

from typing import Final

# Lanes move from slower to faster workers only when a step becomes shorter by this part of it: less
# would move them to and fro with the noise of a machine.
UNEVEN_GAIN: Final = 0.15
# A worker that needs so much longer for a lane than the others do is named to people.
SLOW_RATIO: Final = 1.25

# --- deciding about jobs ---------------------------------------------------------------------

# A worker that is asked to end has so long to reach a step boundary and to put its things away.
NOTICE_S: Final = 30.0
# A replica that is asked to end drains, and answers what it has begun: longer than its own bounds
# for that, together.
REPLICA_NOTICE_S: Final = 60.0
# A worker that nobody wants any more has nothing to save.
STRAY_NOTICE_S: Final = 5.0
# Workers that were started together come up together: one view for all instead of one for each.
GATHER_S: Final = 2.0
# A checkpoint names a step that nobody has reached when the order arrives: so many steps ahead,
# and as many as the job makes in so much time; each missed attempt multiplies it.
CHECKPOINT_LEAD_STEPS: Final = 2
CHECKPOINT_LEAD_S: Final = 0.5
CHECKPOINT_LEAD_GROWTH: Final = 4
CHECKPOINT_LEAD_STEPS_MAX: Final = 100_000
# From the order to the last durable part: a slow step and a slow store, both at their worst.
CHECKPOINT_ATTEMPT_S: Final = 1_800.0
# Between a given up attempt and the next: what disturbed it has a moment to settle.
CHECKPOINT_RETRY_S: Final = 1.0
# Those who want to join or leave wait so long for a checkpoint under way; then it is given up.
VIEW_WAIT_S: Final = 30.0
# A job that is paused, stopped or preempted may write a last checkpoint for so long.
DEPARTURE_S: Final = 300.0
# After one worker has finished the job the others may put their results away for so long.
FINISH_S: Final = 600.0
# A replica that is to leave waits so long for one that was placed to take over: it loads a model.
REPLICA_READY_S: Final = 120.0
# So many rounds in which those that should take over fail; then it does not wait any more.
REPLACEMENT_ROUNDS_MAX: Final = 3
# So many ends of new replicas by their own fault, and an update is stopped.
UPDATE_FAILURES_MAX: Final = 3
# Failures that a job remembers, one for each round of restarts.
FAILURES_KEPT: Final = 32
# A reason may be a traceback; the end of it says most, and it is written to a znode.
REASON_CHARACTERS_MAX: Final = 4_000
# Why a checkpoint cannot be read, as a worker says it: a sentence, with the name of a file. It
# travels with every report of that worker.
UNREADABLE_WHY_CHARACTERS_MAX: Final = 400

# --- the scheduler ---------------------------------------------------------------------------

# Waiting so long is worth a point of priority, so nothing waits for ever. Whole jobs may have to
# take turns by it; they then run for hours, which is worth the restart.
AGING_S: Final = 4 * 3_600.0
# A job that had a claim by the sums but found no set of machines steps back, and the others are
# planned without it; so often at most in one plan. What is then still unused is filled as it is.
# Also how often a plan is thought through again, with itself applied.
PLAN_ROUNDS_MAX: Final = 4

# --- facts of jobs, and the coordinator ------------------------------------------------------

# Reads that are on their way together: a round trip for all of them, and a reply that fits.
READS_IN_FLIGHT: Final = 200
# Placements in one node: a change of one worker writes some 15 kB, not those of ten thousand.
PLACEMENTS_PER_NODE: Final = 256
# A job's history: pages of a ring. A page stays small because each entry writes it again.
HISTORY_PAGE_ENTRIES: Final = 64
HISTORY_PAGE_BYTES_MAX: Final = 64 * 1024
HISTORY_PAGES_KEPT: Final = 8
# What users asked of a job, in words. A word is written with the act that it tells of.
ASKED_KEPT: Final = 64
ASKED_CHARACTERS_MAX: Final = 500
# Settings changed at run time: every worker is told all of them.
SETTINGS_MAX: Final = 1_000
# Names of removed jobs whose workers' numbers are remembered, in one node.
RETIRED_NAMES_MAX: Final = 5_000
# Machines that are being emptied by their names: half of the largest cluster.
DRAINING_NODES_MAX: Final = 5_000
# Records of one job in one transaction; beyond it a lost reply would hide too much.
RECORDS_PER_TRANSACTION: Final = 256
# A transaction is one frame, with paths and heads beside its values.
TRANSACTION_BYTES_MAX: Final = 768 * 1024
# An order whose effect no report shows may be lost: sent again after this, then ever more rarely.
ORDER_AGAIN_S: Final = 1.0
ORDER_AGAIN_S_MAX: Final = 30.0
# A leader that nothing wakes looks so soon, for what time alone brings; then ever more rarely.
LOOK_S: Final = 0.1
LOOK_S_MAX: Final = 2.0
# What a leader saw gets old while it writes: after this it looks again, whatever is left.
TICK_S_MAX: Final = 2.0
# Between two looks at least as long as the last one took, up to this: it leaves half a core.
TICK_GAP_S_MAX: Final = 0.1
# Manifests that are written at a time; a store that hangs must not hold up the decisions.
MANIFEST_WRITERS: Final = 4
# A job whose record failed for a reason of its own is left alone for so long.
TROUBLE_S: Final = 5.0
# A candidate whose campaign failed stands again after this.
CAMPAIGN_AGAIN_S: Final = 0.2

"""Bounds of an agent and its workers."""

from __future__ import annotations

from typing import Final

# Workers that an agent knows, those that have gone included: far more than a machine has cores,
# and a snapshot of them stays below a megabyte.
AGENT_WORKERS_MAX: Final = 1_000
# Numbers of forgotten workers, kept within a term: an order of the same term that is late by more
# than so many lives of workers is not a late order any more.
FORGOTTEN_KEPT_MAX: Final = 10_000
# Without a sign of progress for so long a worker has hung. The same as the longest that a
# collective of torch waits for its peers: nothing honest takes longer.
WORKER_SILENCE_S: Final = 1_800.0
# The longest notice before SIGKILL: spot machines give two minutes, a large checkpoint takes some.
NOTICE_S_MAX: Final = 600.0
# SIGKILL is sent again so often to what does not go: a process in the kernel's hands dies late.
KILL_AGAIN_S: Final = 2.0
# A timer that comes later than this was not late: the agent or the machine was asleep, and so may
# the workers have been. Nobody is held to have hung in that time.
TIMER_LATE_S: Final = 10.0
# The shim of a worker ends it when no agent has come back for so long: time for an upgrade of the
# agent, and no machine is held for ever by workers that nobody asks for.
AGENT_AWAY_S: Final = 180.0
# A replica goes on answering without its agent for a day: somebody will have noticed by then.
REPLICA_AWAY_S: Final = 86_400.0
# From SIGTERM to SIGKILL for a worker whose agent did not come back.
AGENT_AWAY_NOTICE_S: Final = 30.0
# How often a shim whose agent is away looks for a new one.
AGENT_LOOK_S: Final = 0.5
# How often a shim looks how much memory its worker holds, where no control group limits it. A look
# takes half a millisecond for twenty threads; between two of them a worker may touch a gigabyte.
MEMORY_LOOK_S: Final = 0.5
# How often an agent looks how much disk a worker's folder holds. It is a walk over its files:
# of a hundred thousand it takes some tenths of a second, and then is made the later again.
DISK_LOOK_S: Final = 2.0
# Such looks take at most this part of a core, all workers of an agent together.
DISK_LOOK_PART: Final = 0.02
# Files that one look counts. Whoever has more is held to what these take.
DISK_LOOK_FILES_MAX: Final = 200_000
# Of an agent's file system so much is given to no worker: logs, journal, bundles, checkpoints.
DISK_RESERVE_PART: Final = 0.05
DISK_RESERVE_BYTES_MAX: Final = 10 * 1024**3
# Files of requirements that name each other, and all that stands in them: a lock of some hundred
# packages with a hash of each of their files has a megabyte.
REQUIREMENT_FILES_MAX: Final = 50
JOB_REQUIREMENTS_BYTES_MAX: Final = 8 * 1024 * 1024
# pip may take so long: some gigabytes over a slow line, or a build. It is not held to progress.
ENVIRONMENT_MAKE_S: Final = 3_600.0
# Environments that nobody has used for so long are removed, and beyond these bounds those that were
# used longest ago: one with another torch has five gigabytes.
ENVIRONMENT_UNUSED_S: Final = 30 * 86_400.0
ENVIRONMENTS_KEPT: Final = 20
ENVIRONMENTS_BYTES_MAX: Final = 50 * 1024**3
# One that was given a moment ago may not be known to be in use yet.
ENVIRONMENT_FRESH_S: Final = 60.0
# Ports of a worker: one where its group meets, one where a joiner gets the state.
WORKER_PORTS: Final = 2
# Below the range from which systems give out ports to clients.
WORKER_PORT_FIRST: Final = 20_000
WORKER_PORT_LAST: Final = 29_999
# A worker's log is rotated at this size; it and the one before it are kept.
WORKER_LOG_BYTES_MAX: Final = 16 * 1024 * 1024
# Logs of ended workers that stay on an agent's disk; the oldest go first.
WORKER_LOGS_KEPT: Final = 200
# How much of a worker's stderr is searched for its traceback.
STDERR_TAIL_BYTES: Final = 64 * 1024
# What people are shown of a worker's end. It is in the journal and in every snapshot.
EXIT_DETAIL_CHARACTERS_MAX: Final = 8_000
# One message between a worker and its agent: a view of ten thousand workers, and some.
CHANNEL_MESSAGE_BYTES_MAX: Final = 1024 * 1024
# What waits for a worker that does not read; beyond it the connection is cut, and the worker is
# told everything again when it is back.
CHANNEL_UNSENT_BYTES_MAX: Final = 4 * 1024 * 1024
# Attempts whose parts are remembered of a worker: the present one and one before it.
ATTEMPTS_KEPT: Final = 2
# Steps are reported to the agent at most so often; everything else at once.
STEP_REPORT_S: Final = 0.1
# A worker whose agent is away tries again so often.
LINK_RETRY_S: Final = 0.05
LINK_RETRY_S_MAX: Final = 1.0
# A batch of journal entries: a snapshot of a full agent fits.
JOURNAL_BATCH_BYTES_MAX: Final = 64 * 1024 * 1024
# The journal is rewritten when it has grown by so much, and to at least twice what is needed.
JOURNAL_GROWTH_BYTES: Final = 1024 * 1024
# A full disk is tried again so often; until then the agent decides nothing.
JOURNAL_RETRY_S: Final = 1.0
# Events that wait for the disk; an order beyond it is refused for now.
AGENT_EVENTS_MAX: Final = 10_000
# A bundle that cannot be fetched now is tried again so often, as long as its worker is wanted.
BUNDLE_RETRY_S: Final = 2.0
# A reader of logs that follows is shown what is new so soon: as fast as a person reads on.
LOG_LOOK_S: Final = 0.2
# One piece of a log: large enough to be quick, small beside the agent's own memory.
LOG_PIECE_BYTES: Final = 64 * 1024
# Readers of one agent's logs at once, those that follow included.
LOG_READERS_MAX: Final = 32
# Positions that a reader hands back when it calls again: an output of each kept worker, and some.
LOG_POSITIONS_MAX: Final = 1_000
# An agent looks so often whether it has new papers to serve logs with.
LOG_PAPERS_S: Final = 60.0
# All that is kept of a job's logs on one machine, over a slow line.
LOG_READ_S: Final = 600.0
# A worker says what is true of it at least so often, changed or not: a sign of life.
WORKER_BEAT_S: Final = 1.0
# A worker that was silent on its line for so long is looked at: if the system has paused it
# (SIGSTOP), it is killed. A few beats; one that is merely busy is not paused, so this may be short.
WORKER_FROZEN_S: Final = 4.0
# Ports that strangers hold are passed over so often before a worker is given up: a machine where
# so many in a row are taken has another trouble.
PORT_MOVES_MAX: Final = 20
# A worker that wants torch waits so long for the nursery to have imported it, and is then started
# cold. Importing takes three seconds on a quiet core and ten times that on a busy one, where a cold
# start would only begin it anew.
NURSERY_READY_S: Final = 60.0
# A nursery forks within milliseconds; one that does not answer for so long is replaced.
NURSERY_ANSWER_S: Final = 5.0
# A nursery that has died is started again after so long, and later each time.
NURSERY_RETRY_S: Final = 1.0
NURSERY_RETRY_S_MAX: Final = 300.0
# One request to a nursery, or its answer: a path, and a sentence.
NURSERY_MESSAGE_BYTES_MAX: Final = 16 * 1024
# Room in a nursery's environment where its children write who they are: a path, and some.
NURSERY_TITLE_BYTES: Final = 8 * 1024
# Workers that may share one GPU: each needs a context of some hundred megabytes there.
GPU_SHARE_MAX: Final = 64
# How much of a script is searched for its imports.
SCRIPT_LOOK_BYTES: Final = 256 * 1024
# Trying whether a worker can have a /tmp of its own: a small process, on a busy machine.
SANDBOX_TRY_S: Final = 10.0
# A probe is asked so often, may take so long, and so many failures in a row mean no. Others ask
# every ten seconds; a loopback or a rack is asked twice as often for nothing.
PROBE_EVERY_S: Final = 5.0
PROBE_TIMEOUT_S: Final = 2.0
PROBE_FAILURES: Final = 3
# What a job file may say of them.
PROBE_EVERY_S_MIN: Final = 0.1
PROBE_EVERY_S_MAX: Final = 3_600.0
PROBE_TIMEOUT_S_MIN: Final = 0.05
PROBE_TIMEOUT_S_MAX: Final = 300.0
PROBE_FAILURES_MAX: Final = 1_000
# Until a probe has passed once it is asked so often at least: people wait for the first answer.
PROBE_FIRST_S: Final = 0.25
# Of an answer over HTTP only the first line is read, and of a command's output so much is kept.
PROBE_LINE_BYTES_MAX: Final = 8 * 1024
PROBE_OUTPUT_BYTES_MAX: Final = 4 * 1024
# The output of a command is taken from its pipe in such pieces: what a pipe holds.
PROBE_READ_BYTES: Final = 64 * 1024
# Commands of probes that run at once on one machine; the others wait their turn.
PROBE_COMMANDS_MAX: Final = 16
# What people are told of a probe that fails.
PROBE_DETAIL_CHARACTERS_MAX: Final = 300
# A program without a probe that never used the link is ready when it has run for so long: whoever
# cannot start (a wrong argument, a port that is taken) has ended by then.
PROGRAM_SETTLES_S: Final = 3.0
# From SIGTERM to SIGKILL for a worker whose `live` probe says no.
LIVE_NOTICE_S: Final = 10.0
# Ports that a job file may name.
JOB_PORTS_MAX: Final = 16

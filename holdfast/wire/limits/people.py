"""Bounds of what people see: the doctor, listings, job files."""

from __future__ import annotations

from typing import Final

# --- the doctor ------------------------------------------------------------------------------

# All checks together, so that the command ends within three seconds: longer, and nobody runs it
# before asking for help.
DOCTOR_S: Final = 2.4
# Of `holdfast doctor`: a small process that tries out namespaces, after all other checks.
DOCTOR_TMP_S: Final = 0.5
# Measuring fsync: enough for a median on a slow disk, a fraction of the whole.
DOCTOR_FSYNC_S: Final = 0.4
DOCTOR_FSYNC_SAMPLES_MAX: Final = 25
# A write waits for one fsync. Above this a disk is spinning, remote, or throttled.
FSYNC_MS_WARN: Final = 10.0
# Room for the log and two snapshots of a full tree; below the minimum writes soon stop.
DISK_FREE_BYTES_WARN: Final = 5 * 1024**3
DISK_FREE_BYTES_MIN: Final = 256 * 1024**2
# A connection takes one file; fewer than this, and a small cluster meets the limit.
OPEN_FILES_WARN: Final = 4_096
# Wall clock against monotonic clock over a short sleep: more is a clock being moved.
CLOCK_SKEW_MS_WARN: Final = 20.0

# --- listings --------------------------------------------------------------------------------

# A tree on a terminal: beyond it nobody reads, and each node costs a round trip.
LISTED_NODES_MAX: Final = 10_000
# How much of a node's data a listing shows.
SHOWN_DATA_BYTES_MAX: Final = 80

# --- job files -------------------------------------------------------------------------------

# A page or two of text; settings may be many, data belongs into the bundle.
JOB_FILE_BYTES_MAX: Final = 128 * 1024
# A pod's name has at most 63 characters; a job's is a part of it.
JOB_NAME_CHARACTERS_MAX: Final = 50
# Waiting counts in points of priority: beyond this nobody would live to see the difference.
JOB_PRIORITY_MAX: Final = 1_000
# What one view can list within a frame of the coordination plane.
JOB_WORKERS_MAX: Final = 10_000
JOB_LANES_MAX: Final = 65_536
# Each start of a worker carries its environment, and a job's node holds it.
JOB_ENVIRONMENT_MAX: Final = 64
JOB_ENVIRONMENT_BYTES_MAX: Final = 16 * 1024
# The same of what it wants installed: a lock with hashes is a file in the bundle.
JOB_REQUIREMENTS_MAX: Final = 500
JOB_REQUIREMENT_CHARACTERS_MAX: Final = 1_000
# A key or a certificate with its chain; a leader holds all of them in memory.
SECRET_BYTES_MAX: Final = 16 * 1024
SECRETS_MAX: Final = 1_000

# --- `holdfast run` --------------------------------------------------------------------------

# A laptop's lid is closed sooner than a cluster's machine is taken away.
RUN_CHECKPOINT_S: Final = 30.0
# The job's facts are looked at so often; its steps come by themselves.
RUN_LOOK_S: Final = 0.3
# Its history is read again at least so often, also when nothing else has changed.
RUN_HISTORY_S: Final = 2.0
# Where there is no terminal, a line of progress so often.
RUN_PROGRESS_S: Final = 5.0
# A process that died is started again after a pause that doubles: one that cannot start at all
# must not keep a core busy.
RUN_RESTART_S: Final = 0.1
RUN_RESTART_S_MAX: Final = 10.0
# Steps a second, over the last so many seconds: steady to the eye, and soon true after a change.
RUN_RATE_S: Final = 5.0
# What a run keeps of its own: samples of progress for the summary, lines that wait to be shown.
RUN_SAMPLES_MAX: Final = 10_000
RUN_LINES_MAX: Final = 2_000
# Processes have so long to end by themselves before they are killed.
RUN_END_S: Final = 10.0
# After the first Ctrl-C a script has so long to reach a step and save it. What then lives is
# killed, and all is over within 10 s: longer, and people close the terminal.
RUN_INTERRUPT_S: Final = 7.0
# While bytes of a checkpoint come, it gets so much longer each time; all together at most so long,
# as a job of a cluster does.
RUN_WRITING_S: Final = 2.0
RUN_SAVE_S: Final = 300.0
# A worker's line without an end is shown in pieces of this size.
RUN_LINE_BYTES_MAX: Final = 64 * 1024
# A traceback of a worker that has not ended by then was only logged.
RUN_TRACEBACK_S: Final = 3.0
# A process of a run that lived so long has started well; one that ends early so often is given up.
RUN_STEADY_S: Final = 10.0
RUN_RESTARTS_MAX: Final = 5
# An old job of the same name that is to end before a new one begins: its agent comes up first.
RUN_REPLACE_S: Final = 60.0
# How often a run looks whether there is anything to show, when nothing wakes it.
RUN_TICK_S: Final = 0.1
# A job's status is told when it has lasted so long.
RUN_SETTLE_S: Final = 1.0
# Sessions of a run's own cluster: all on one machine, so silence of this length is a dead process.
RUN_SESSION_S: Final = 5.0
# A shell that completes a name: somebody waits with a finger on the key.
COMPLETION_S: Final = 1.0

# --- the Python client -----------------------------------------------------------------------

# How often whoever waits for a job looks: as soon as a person would notice.
JOB_LOOK_S: Final = 0.3
# Steps are asked of the leader more rarely than phases of the coordination plane.
JOB_STEPS_S: Final = 1.0
# A large checkpoint over a slow line; whoever waits longer looks for the cause.
JOB_ACT_WAIT_S: Final = 1_800.0
# Many replicas, one after another, each with its own start.
JOB_UPDATE_WAIT_S: Final = 3_600.0
# What runs is asked of the leader; nobody waits for one longer than a person would.
LEADER_ASK_S: Final = 2.0
# One prediction; a model that takes longer is slow, and `timeout_s` says how slow it may be.
PREDICT_S: Final = 60.0
# Calls of one client at a time: predictions as futures, verbs of an async client. A machine that
# sends more has several processes.
CLIENT_THREADS_MAX: Final = 32
# Connections to gateways that a client keeps for its next prediction.
CLIENT_CONNECTIONS_KEPT: Final = 32
# Lines of logs that wait to be taken; then the machines that send them wait.
CLIENT_LOG_PIECES_MAX: Final = 64

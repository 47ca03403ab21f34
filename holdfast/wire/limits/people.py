"""Bounds of what people see: the doctor, listings, job files."""

from __future__ import annotations

from typing import Final

# --- the doctor ------------------------------------------------------------------------------

# All checks together, so that the command ends within three seconds: longer, and nobody runs it
# before asking for help.
DOCTOR_S: Final = 2.4
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

"""Bounds of training: meetings, exchanges, checkpoints of a worker's state."""

from __future__ import annotations

from typing import Final

# --- the mesh between the members of a view ---------------------------------------------------

# The greeting of a connection, with a job's settings in it: a thousand of them, and some.
HELLO_BYTES_MAX: Final = 1024 * 1024
# A stranger that connects and says nothing is sent away after this.
HELLO_S: Final = 5.0
# Callers that wait at a worker's door: every member of a large job twice.
CALLERS_MAX: Final = 4_096
# Nothing came from a peer for so long: ask at its door whether it is there.
KNOCK_AFTER_S: Final = 1.0
# One question at a peer's door: far more than a round trip and a busy machine need.
KNOCK_S: Final = 3.0
# A peer whose door has not answered for so long, although asked several times, is suspected.
PEER_SILENCE_S: Final = 10.0
# The same during a meeting: a peer that only computes answers at its door.
MEET_S: Final = 10.0
# A caller waits so long before it calls again, and then twice as long, up to the second.
CALL_AGAIN_S: Final = 0.02
CALL_AGAIN_S_MAX: Final = 0.5
# When a peer is lost the next view is on its way: wait so long for it before the members of this
# one meet again (a link was cut, and nobody died).
REMEET_S: Final = 0.5
# A worker tells a caller that has to wait that it is there.
DOOR_BEAT_S: Final = 1.0
# Buffers in one call of the system; the kernel takes no more than 1,024.
BUFFERS_PER_CALL: Final = 512

# --- the state and its checkpoints ------------------------------------------------------------

# A larger entry is cut along its first dimension: parts are written and read side by side.
PART_BYTES: Final = 64 * 1024 * 1024
# Smaller entries share parts of about this size: a part costs a request, and one that shares its
# part with a changed entry is written again.
PART_GROUP_BYTES: Final = 4 * 1024 * 1024
# Parts that are read at a time.
PART_READERS: Final = 4
# The header of a part or of a state: names and shapes of a million entries.
STATE_HEADER_BYTES_MAX: Final = 256 * 1024 * 1024
# A store that is full or away is tried again so soon, then ever more rarely. Training goes on.
SAVE_AGAIN_S: Final = 0.5
SAVE_AGAIN_S_MAX: Final = 15.0
# How far the thread that writes a share steps back behind the training (as `nice` counts). Not
# further: the training waits for it where both need Python's one lock.
SAVE_NICE: Final = 5
# Errors of a store that are none of ours are waited out so often; then they are a bug, and the
# worker that cannot save says so and ends.
SAVE_SURPRISES_MAX: Final = 5
# A worker that leaves gives the share that it is writing so long: well within its notice.
LEAVE_SAVING_S: Final = 10.0
# A script without a job checkpoints so often, and waits so long for its last one.
SOLO_EVERY_STEPS: Final = 100
SOLO_SAVE_S: Final = 120.0
# A script without a job shows how far it is: on a terminal so often, elsewhere so often. Its rate
# is that of the last so many times: steady to the eye.
PROGRESS_TERMINAL_S: Final = 0.25
PROGRESS_PLAIN_S: Final = 10.0
PROGRESS_RATE_SAMPLES: Final = 20
# All members compare a digest of their state every so many steps, and of so many bytes at a time:
# a larger state is gone through in turns.
HASH_STEPS: Final = 50
HASH_BYTES: Final = 64 * 1024 * 1024

# --- the sum of gradients ---------------------------------------------------------------------

# Gradients travel in buckets of about this size: large enough that a stage is not all overhead,
# small enough that the first ones travel while the backward pass still works on the last.
BUCKET_BYTES: Final = 4 * 1024 * 1024
# But each member's part of a bucket has at least so much, where a job may have many: a message
# costs a member some 50 microseconds, and so many bytes on a line of 10 Gb/s twice that.
CHUNK_BYTES_MIN: Final = 64 * 1024
# Up to this: buckets take memory, and what is not yet computed cannot travel.
BUCKET_BYTES_MAX: Final = 64 * 1024 * 1024
# Between members that share memory nothing travels: they wait for one another once in so many bytes
# of gradients, on the host and on a device (where a wait costs as much as copying a hundred MB).
SHARED_STAGE_BYTES: Final = 8 * 1024 * 1024
DEVICE_STAGE_BYTES: Final = 128 * 1024 * 1024
# On a device, gradients of a lane for which nobody waits yet are folded in when there are so many:
# they stay in memory until then, and each fold is a few launches.
FOLDED_BYTES: Final = 64 * 1024 * 1024
# Up to this size, those of a whole lane wait for its end: one fold, and no call for each of them.
# What is larger would take too much of a device's memory beside the sums.
WHOLE_GRADIENTS_BYTES_MAX: Final = 1024 * 1024 * 1024

# A lane's function is captured for so many forms of batches, or of the model, at most: a graph has
# memory of its own, and one that changes all the time is slower than none.
CAPTURED_GRAPHS_MAX: Final = 8
# A graph cannot see that a number which its function reads has changed. So once in so many lanes
# the function itself is run, too, and both must come to the same.
CAPTURE_CHECK_LANES: Final = 4096

# --- how fast a worker is ---------------------------------------------------------------------

# A worker says how long a lane takes it when it has seen so much of its present view: so lanes move
# at most so often because of it, and not for a moment's trouble.
PACE_S: Final = 10.0
PACE_STEPS_MIN: Final = 5
# The median is over the last so many steps.
PACE_STEPS_KEPT: Final = 128

# --- the local mode ---------------------------------------------------------------------------

# Steps of a lane between two meetings. DiLoCo's is 500, for large models over slow lines; this is
# still within an epoch of a small one, and talks 16 times less than every step does.
LOCAL_STEPS: Final = 16
# DiLoCo's outer optimizer, with the values of its paper.
OUTER_LR: Final = 0.7
OUTER_MOMENTUM: Final = 0.9

# --- data -------------------------------------------------------------------------------------

# The shuffled order of a data set up to this size is kept in memory (8 bytes each) for an epoch; of
# a larger one each batch computes its own places, which takes longer.
SHUFFLE_STORED_SAMPLES_MAX: Final = 4_000_000
# A point of the ring on which files are placed: so many for each lane, so that lanes get about the
# same number of files.
RING_POINTS_PER_LANE: Final = 64
# A loader process reads so many steps of a lane ahead of the loop: enough that the one after the
# next is under way while one is computed, and a view change throws little away.
LOADER_STEPS_AHEAD: Final = 2
# A loader process that was told to end has so long: it may be in the middle of a slow read.
LOADER_END_S: Final = 2.0

# --- the asynchronous mode --------------------------------------------------------------------

# One member in so many also serves: it spends about as much on their pushes as on its own batches.
ASYNC_WORKERS_PER_SERVER: Final = 4
# Points of a server on the ring: names are spread evenly to about a tenth.
ASYNC_RING_POINTS: Final = 64
# A push from weights that are more than so many updates old is refused: gradients from weights that
# old do harm, and a worker ten times slower than its peers is still within it.
ASYNC_STALENESS: Final = 8
# A server sends a copy of what it holds to its neighbour after so many updates: its death costs so
# many of an optimizer's moments at most.
ASYNC_COPY_UPDATES: Final = 4
# A worker takes as many tickets at a time as it computes in this time, within these bounds: they
# are what it goes on with while the ledger is away, and what its death gives out again.
ASYNC_LEASE_S: Final = 0.25
ASYNC_LEASE_MAX: Final = 8
# Tickets that a worker remembers having done, for a ledger that comes back older: more than it can
# do between two copies of the ledger.
ASYNC_LATELY_MAX: Final = 1_024
# Batches that a worker goes on with alone while a server is away; then it waits for it.
ASYNC_ALONE_BATCHES_MAX: Final = 64
# A request between members: longer than a busy machine needs for a large push, shorter than it
# takes to find that a process is frozen.
ASYNC_CALL_S: Final = 5.0
# A member that did not answer is left alone for so long, then twice as long, up to the second.
ASYNC_AWAY_S: Final = 0.02
ASYNC_AWAY_S_MAX: Final = 1.0
# Whoever waits for something of others asks again after this.
ASYNC_ASK_AGAIN_S: Final = 0.05
# A push of the largest shard that one member should hold.
ASYNC_MESSAGE_BYTES_MAX: Final = 4 * 1024**3
# Connections to a server: every member of a large job twice (its worker, and its tending thread).
ASYNC_CALLERS_MAX: Final = 2_048
# A server that leaves waits so long for the new homes of its names: well within its notice.
ASYNC_LEAVE_S: Final = 10.0

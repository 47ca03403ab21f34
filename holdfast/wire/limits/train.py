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
# A worker that leaves gives the share that it is writing so long: well within its notice.
LEAVE_SAVING_S: Final = 10.0
# A script without a job checkpoints so often, and waits so long for its last one.
SOLO_EVERY_STEPS: Final = 100
SOLO_SAVE_S: Final = 120.0
# All members compare a digest of their state every so many steps, and of so many bytes at a time:
# a larger state is gone through in turns.
HASH_STEPS: Final = 50
HASH_BYTES: Final = 64 * 1024 * 1024

# --- the sum of gradients ---------------------------------------------------------------------

# Gradients travel in buckets of about this size: large enough that a stage is not all overhead,
# small enough that the first ones travel while the backward pass still works on the last.
BUCKET_BYTES: Final = 4 * 1024 * 1024

# --- data -------------------------------------------------------------------------------------

# The shuffled order of a data set up to this size is kept in memory (8 bytes each) for an epoch; of
# a larger one each batch computes its own places, which takes longer.
SHUFFLE_STORED_SAMPLES_MAX: Final = 4_000_000
# A point of the ring on which files are placed: so many for each lane, so that lanes get about the
# same number of files.
RING_POINTS_PER_LANE: Final = 64

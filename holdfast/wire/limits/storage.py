"""Bounds of blobs, parts, manifests and bundles."""

from __future__ import annotations

from typing import Final

# S3's own limit for a whole key; a segment also becomes a file's name, with room for a suffix.
BLOB_KEY_BYTES_MAX: Final = 1_024
BLOB_KEY_SEGMENT_BYTES_MAX: Final = 200
# What is hashed and written at a time: large enough that Python's own time does not count.
BLOB_CHUNK_BYTES: Final = 4 * 1024 * 1024
# The same for what is read beside those who answer requests: the system is never busy with a piece
# for so long that one of them would notice.
QUIET_PIECE_BYTES: Final = 128 * 1024
# A smaller piece is hashed sooner than another thread is woken.
HASH_ASIDE_BYTES: Final = 1024 * 1024
# Larger blobs go to an object store in several requests of this size. With S3's limit of 10,000
# requests an upload, and this size, 156 GiB would be the end.
BLOB_MULTIPART_BYTES: Final = 16 * 1024 * 1024
# Requests of one upload at a time; each holds a piece in memory.
BLOB_PIECES_IN_FLIGHT: Final = 4
BLOB_BYTES_MAX: Final = 128 * 1024**3
# What `get` holds in memory; larger blobs are streamed.
BLOB_IN_MEMORY_BYTES_MAX: Final = 4 * 1024**3
# A store in memory is for tests and simulations.
MEMORY_STORE_BYTES_MAX: Final = 2 * 1024**3
# One call, retries included; and for each byte as if a link had no more than a megabyte a second.
BLOB_CALL_S: Final = 60.0
BLOB_BYTES_PER_S_MIN: Final = 1_000_000
# One small request to an object store; also the longest silence within a large one.
BLOB_REQUEST_S: Final = 20.0
BLOB_CONNECT_S: Final = 5.0
# A store that restarts is back within these: 0.1, 0.2, 0.4, 0.8, 1.6, 3.2 and 5 s apart.
BLOB_TRIES_MAX: Final = 8
BLOB_BACKOFF_S: Final = 0.1
BLOB_BACKOFF_S_MAX: Final = 5.0
# Keys that a listing holds in memory at a time: what S3 gives in one answer.
BLOB_LIST_PAGE: Final = 1_000
# How often one looks whether a folder's lock is free; it is held for two calls of the system.
FOLDER_LOCK_POLL_S: Final = 0.002
# A temporary file of a writer that is gone; younger ones may not have been locked yet.
TEMPORARY_AGE_S: Final = 3_600.0
# Directories known to be durable, so that they are not synced again; then we learn anew.
FOLDERS_KNOWN_MAX: Final = 10_000
# A hundred thousand parts of 250 bytes.
MANIFEST_BYTES_MAX: Final = 32 * 1024 * 1024
# A part that is written must be reported, in flight or committed, within half of this. Long: an
# unneeded part costs only room.
GARBAGE_GRACE_S: Final = 6 * 3_600.0
# Between marking and removing: longer than any call that was under way when we marked.
GARBAGE_WAIT_S: Final = 600.0
# Removed with one look at what is needed; a look older than this removal would be too old.
GARBAGE_BATCH: Final = 200
# Code, not data: it is copied to every machine. The tree is checked whole before it is used.
BUNDLE_BYTES_MAX: Final = 256 * 1024 * 1024
BUNDLE_FILES_MAX: Final = 20_000
# The largest files are named when a bundle is too large.
BUNDLE_LARGEST_SHOWN: Final = 5
# Old versions of a name; a job is pinned to a digest, so a forgotten version harms no job.
BUNDLE_VERSIONS_KEPT: Final = 100
# Listing a large checkout takes git a second or two.
GIT_S: Final = 30.0
# Waiting for another process that unpacks the same bundle.
BUNDLE_LOCK_S: Final = 120.0

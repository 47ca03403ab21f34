"""Every time-out and limit, with its unit last in the name and the reason for its value.

One module, so that a bound is found, questioned and changed in one place.
"""

from __future__ import annotations

from typing import Final

# --- the embedded coordination server -------------------------------------------------------

# ZooKeeper's own tick; clients compute their session time-outs from it.
TICK_MS: Final = 2_000
# A session may ask for no less and no more than this: the same clamp as ZooKeeper's.
SESSION_TIMEOUT_MS_MIN: Final = 2 * TICK_MS
SESSION_TIMEOUT_MS_MAX: Final = 20 * TICK_MS
# `jute.maxbuffer`: a larger frame is refused by ZooKeeper too, so nothing larger can be relied on.
FRAME_BYTES_MAX: Final = 0xFFFFF
# Enough for ten thousand machines on one embedded server; a file descriptor each.
CONNECTIONS_MAX: Final = 20_000
# A socket that has not introduced itself by then is half-open or not a client.
HANDSHAKE_S: Final = 10.0
# A connection that was told to end and whose peer does not read the rest is cut after this.
CLOSE_S: Final = 5.0
# How often the server looks for silent sessions and half-open sockets.
SWEEP_S: Final = 0.25
# How often empty containers and outlived TTL nodes are removed.
CONTAINER_SWEEP_S: Final = 5.0
# About 100 bytes each; a leak of watches in a client must not become one of ours.
WATCHES_PER_CONNECTION_MAX: Final = 100_000
WATCHES_MAX: Final = 2_000_000
# About 600 bytes each: a gigabyte or so. More facts than that belong into another store.
NODES_MAX: Final = 2_000_000
# Access control lists that nodes share instead of holding a copy each; then sharing starts anew.
# Lists above the size are not shared, so that the table stays below four megabytes.
ACLS_SHARED_MAX: Final = 4_096
ACL_SHARED_BYTES_MAX: Final = 1_024
# Requests of one connection that wait for their turn; beyond it we stop reading its socket.
REQUESTS_PER_CONNECTION_MAX: Final = 4_096
# The same in bytes: a client's requests may be a megabyte each.
REQUEST_BYTES_PER_CONNECTION_MAX: Final = 16 * 1024 * 1024
# Frames of one client before the others have their turn: about three milliseconds.
FRAMES_PER_TURN_MAX: Final = 256
# Replies that a client does not read: from here on we stop reading its requests.
UNSENT_BYTES_SLOW: Final = 1024 * 1024
# Replies and events that a client does not read; beyond it the client is closed.
UNSENT_BYTES_MAX: Final = 64 * 1024 * 1024
# Identities that one connection may add by `auth`.
IDENTITIES_MAX: Final = 32
# Operations in one multi; the frame's size bounds it too.
MULTI_OPERATIONS_MAX: Final = 10_000
# What shares one fsync and is applied in one turn of the loop: about ten milliseconds.
BATCH_TRANSACTIONS_MAX: Final = 500
# A batch that takes longer than this is a disk in trouble; pings are then answered out of turn.
DISK_STALL_S: Final = 0.25
# A log segment is closed at this size; a snapshot is made from closed segments.
SEGMENT_BYTES_MAX: Final = 64 * 1024 * 1024
# Zeros written ahead of the log's end: an append that does not change the file's size needs no
# journal commit of the file system, and its fsync is about half as long.
LOG_AHEAD_BYTES: Final = 256 * 1024
# A snapshot after so many transactions keeps a restart below three seconds.
SNAPSHOT_TRANSACTIONS: Final = 50_000
# The last good one and one before it, with the log between them.
SNAPSHOTS_KEPT: Final = 2
# Without room for a new segment the old one goes on; asking more often would not make room.
ROLL_RETRY_S: Final = 5.0
# Old files are removed within milliseconds, and a start waits for it; recovery may take seconds,
# and the removal of old files waits for that.
TRIMMING_S: Final = 30.0

# --- the coordination client ----------------------------------------------------------------

# Long enough for a paused laptop or a Java garbage collection, short enough for a failover.
SESSION_TIMEOUT_S: Final = 10.0
# The first connection: a real ensemble may be electing its leader.
CONNECT_TIMEOUT_S: Final = 15.0
# A leader acts only this part of a session's time after the last answer it had: the rest covers
# the difference between its clock and the ensemble's.
LEASE_FRACTION: Final = 2 / 3

# --- the doctor -----------------------------------------------------------------------------

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
# One call to the coordination plane: an ensemble that loses its leader answers again within this.
OPERATION_TIMEOUT_S: Final = 20.0
# A caller that waits for less, or not at all, still gives each request this long to be answered.
OPERATION_GRACE_S: Final = 5.0
# The keeper asks for a sign of life so often, as a part of the session's time.
KEEPER_FRACTION: Final = 1 / 10
# A server that has not answered the keeper by then is given up, and another one is tried.
HANG_UP_FRACTION: Final = 1 / 3
# Between two attempts to connect: the first is soon, the last still below a session's time.
RECONNECT_DELAY_S: Final = 0.05
RECONNECT_DELAY_S_MAX: Final = 1.0
# The embedded server, from its start to its first answer; recovery of a large folder takes seconds.
SERVER_START_S: Final = 30.0
# An embedded server that nobody uses ends after this; long enough for a script's next run.
LINGER_S: Final = 30.0
# One attempt to see why a server cannot be reached.
DIAGNOSE_S: Final = 1.0
# A value in the coordination plane: half a frame, since a transaction may carry it with others.
VALUE_BYTES_MAX: Final = 512 * 1024
# An item of a queue is written again with each delivery; larger things belong into a blob.
QUEUE_ITEM_BYTES_MAX: Final = 64 * 1024
# All names of a queue's items come in one frame, 44 bytes each.
QUEUE_CAPACITY_MAX: Final = 10_000
# Marks of the last writes, kept beside a value: a writer whose reply was lost finds its own.
STAMPS_KEPT: Final = 64
# A compare-and-set that somebody else always wins is a design error, not bad luck.
UPDATE_TRIES_MAX: Final = 200
# Nodes that a waiter could not remove because the server was away; removed when it is back.
CHORES_MAX: Final = 10_000
# Changes of a session's state that a slow listener has not seen yet.
STATE_CHANGES_MAX: Final = 1_000
# A thread of ours that is asked to end looks up at once; this bounds a stuck callback of a user.
THREAD_END_S: Final = 5.0
# Characters of a name that becomes part of a node's name.
NAME_CHARACTERS_MAX: Final = 200

# --- the agent ------------------------------------------------------------------------------

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
# From SIGTERM to SIGKILL for a worker whose agent did not come back.
AGENT_AWAY_NOTICE_S: Final = 30.0
# How often a shim whose agent is away looks for a new one.
AGENT_LOOK_S: Final = 0.5
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

# --- between agents and the coordinator -----------------------------------------------------

# One message. A thousand workers with their tracebacks and parts; a view of ten thousand workers
# has less than a hundredth of it.
RPC_MESSAGE_BYTES_MAX: Final = 32 * 1024 * 1024
# What a report keeps of each traceback when the whole does not fit.
EXIT_DETAIL_SHORT_CHARACTERS: Final = 200
# Orders are sent together up to this size: one fsync of the agent for all of them.
ORDERS_BYTES: Final = 1024 * 1024
# Orders that wait for one agent's stream: several for each of its workers.
ORDERS_WAITING_MAX: Final = 4_096
# Orders that agents refused, kept for people.
REFUSALS_KEPT: Final = 256
# A stream that has not said who it is by then is not an agent's.
HELLO_S: Final = 5.0
# Connecting, certificates included, and one short call.
RPC_CALL_S: Final = 10.0
# An agent reports at least so often, also when nothing has changed.
REPORT_S: Final = 2.0
# Steps alone are reported at most so often; anything else at once. Two hundred agents are then
# two thousand reports a second, and a checkpoint's lead is several times as long.
REPORT_STEPS_S: Final = 0.1
# A stream without a report for so long is cut: its agent hangs, or the network lost it.
REPORT_SILENCE_S: Final = 5 * REPORT_S
# An agent that cannot reach the leader tries again so often; a new leader's address at once.
UPLINK_RETRY_S: Final = 0.05
UPLINK_RETRY_S_MAX: Final = 2.0
# Streams of one coordinator; a file each.
STREAMS_MAX: Final = 10_000
# A peer that does not answer HTTP/2 pings for so long is gone.
RPC_KEEPALIVE_S: Final = 10.0
RPC_KEEPALIVE_TIMEOUT_S: Final = 5.0
# Streams have so long to end by themselves when the coordinator stops.
RPC_STOP_S: Final = 1.0
# Short: there is no list of revoked certificates, so a stolen one is useless soon. Long enough to
# survive a night without a leader.
CERTIFICATE_S: Final = 24 * 3_600.0
# Renewed after this part of its life: several tries are left.
CERTIFICATE_RENEW_PART: Final = 0.5
# The cluster's own authority: it outlives the cluster.
AUTHORITY_S: Final = 10 * 365 * 24 * 3_600.0
# Certificates hold from so long before they are made: clocks differ.
CLOCK_DIFFERENCE_S: Final = 300.0
# A join token is copied by hand, and then used.
JOIN_TOKEN_S: Final = 3_600.0
JOIN_TOKEN_S_MAX: Final = 7 * 24 * 3_600.0
# A token with the authority's certificate in it has about a thousand characters.
TOKEN_CHARACTERS_MAX: Final = 8_192
# A request for a certificate has a key and a name.
CERTIFICATE_REQUEST_BYTES_MAX: Final = 16 * 1024

# --- listings -------------------------------------------------------------------------------

# A tree on a terminal: beyond it nobody reads, and each node costs a round trip.
LISTED_NODES_MAX: Final = 10_000
# How much of a node's data a listing shows.
SHOWN_DATA_BYTES_MAX: Final = 80

# --- storage --------------------------------------------------------------------------------

# S3's own limit for a whole key; a segment also becomes a file's name, with room for a suffix.
BLOB_KEY_BYTES_MAX: Final = 1_024
BLOB_KEY_SEGMENT_BYTES_MAX: Final = 200
# What is hashed and written at a time: large enough that Python's own time does not count.
BLOB_CHUNK_BYTES: Final = 4 * 1024 * 1024
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

# --- deciding about jobs --------------------------------------------------------------------

# A worker that is asked to end has so long to reach a step boundary and to put its things away.
NOTICE_S: Final = 30.0
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
# Failures that a job remembers, one for each round of restarts.
FAILURES_KEPT: Final = 32
# A reason may be a traceback; the end of it says most, and it is written to a znode.
REASON_CHARACTERS_MAX: Final = 4_000

# --- the scheduler ----------------------------------------------------------------------------

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
# Jobs that a new leader reads at a time: the waits overlap, the work does not.
JOB_READERS: Final = 8
# Placements in one node: a change of one worker writes some 15 kB, not those of ten thousand.
PLACEMENTS_PER_NODE: Final = 256
# A job's history: pages of a ring. A page stays small because each entry writes it again.
HISTORY_PAGE_ENTRIES: Final = 64
HISTORY_PAGE_BYTES_MAX: Final = 64 * 1024
HISTORY_PAGES_KEPT: Final = 8
# Settings changed at run time: every worker is told all of them.
SETTINGS_MAX: Final = 1_000
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

# --- job files --------------------------------------------------------------------------------

# A page or two of text; settings may be many, data belongs into the bundle.
JOB_FILE_BYTES_MAX: Final = 128 * 1024
# A pod's name has at most 63 characters; a job's is a part of it.
JOB_NAME_CHARACTERS_MAX: Final = 50
# Waiting counts in points of priority: beyond this nobody would live to see the difference.
JOB_PRIORITY_MAX: Final = 1_000
# What one view can list within a frame of the coordination plane.
JOB_WORKERS_MAX: Final = 10_000
JOB_LANES_MAX: Final = 65_536

"""Time-outs and limits that several parts share.

Each has its unit last in its name, and the reason for its value. What one module alone uses stands
in that module.
"""

from __future__ import annotations

from typing import Final

# --- of everybody ---------------------------------------------------------------------------------

# What one worker holds at once: more than that is a data structure, and belongs elsewhere.
SHARED_HELD_MAX: Final = 64
# What one worker waits for at once, each in a thread of its own.
SHARED_WAITS_MAX: Final = 16
# Values that one worker follows, and that all workers of an agent follow: each of the latter is a
# thread of the agent and a watch in the plane.
SHARED_CONFIGS_MAX: Final = 16

# --- of the coordination server -------------------------------------------------------------------

# ZooKeeper's own tick; clients compute their session time-outs from it.
TICK_MS: Final = 2_000
# A session may ask for no less and no more than this: the same clamp as ZooKeeper's.
# Enough for ten thousand machines on one embedded server; a file descriptor each.
CONNECTIONS_MAX: Final = 20_000
# A socket that has not introduced itself by then is half-open or not a client.
HANDSHAKE_S: Final = 10.0
# How often the server looks for silent sessions and half-open sockets.
SWEEP_S: Final = 0.25
# About 600 bytes each: a gigabyte or so. More facts than that belong into another store.
NODES_MAX: Final = 2_000_000
# A log segment is closed at this size; a snapshot is made from closed segments.
SEGMENT_BYTES_MAX: Final = 64 * 1024 * 1024
# A snapshot after so many transactions keeps a restart below three seconds.
SNAPSHOT_TRANSACTIONS: Final = 50_000
# Old files are removed within milliseconds, and a start waits for it; recovery may take seconds,
# and the removal of old files waits for that.
TRIMMING_S: Final = 30.0

# --- of its clients -------------------------------------------------------------------------------

# Long enough for a paused laptop or a Java garbage collection, short enough for a failover.
SESSION_TIMEOUT_S: Final = 10.0
# The first connection: a real ensemble may be electing its leader.
CONNECT_TIMEOUT_S: Final = 15.0
# One call to the coordination plane: an ensemble that loses its leader answers again within this.
OPERATION_TIMEOUT_S: Final = 20.0
# The keeper asks for a sign of life so often, as a part of the session's time.
KEEPER_FRACTION: Final = 1 / 10
# Between two attempts to connect: the first is soon, the last still below a session's time.
RECONNECT_DELAY_S_MAX: Final = 1.0
# The embedded server, from its start to its first answer; recovery of a large folder takes seconds.
SERVER_START_S: Final = 30.0
# One attempt to see why a server cannot be reached.
DIAGNOSE_S: Final = 1.0
# A value in the coordination plane: half a frame, since a transaction may carry it with others.
VALUE_BYTES_MAX: Final = 512 * 1024
# A compare-and-set that somebody else always wins is a design error, not bad luck.
UPDATE_TRIES_MAX: Final = 200
# A thread of ours that is asked to end looks up at once; this bounds a stuck callback of a user.
THREAD_END_S: Final = 5.0
# Characters of a name that becomes part of a node's name.
NAME_CHARACTERS_MAX: Final = 200

# --- of stores ------------------------------------------------------------------------------------

# S3's own limit for a whole key; a segment also becomes a file's name, with room for a suffix.
BLOB_KEY_BYTES_MAX: Final = 1_024
# What is hashed and written at a time: large enough that Python's own time does not count.
BLOB_CHUNK_BYTES: Final = 4 * 1024 * 1024
# The same for what is read beside those who answer requests: the system is never busy with a piece
# for so long that one of them would notice.
QUIET_PIECE_BYTES: Final = 128 * 1024
# One call, retries included; and for each byte as if a link had no more than a megabyte a second.
BLOB_CALL_S: Final = 60.0
BLOB_BYTES_PER_S_MIN: Final = 1_000_000
# How often one looks whether a folder's lock is free; it is held for two calls of the system.
FOLDER_LOCK_POLL_S: Final = 0.002
# A hundred thousand parts of 250 bytes.
MANIFEST_BYTES_MAX: Final = 32 * 1024 * 1024
# A part that is written must be reported, in flight or committed, within half of this. Long: an
# unneeded part costs only room.
GARBAGE_GRACE_S: Final = 6 * 3_600.0
# Between marking and removing: longer than any call that was under way when we marked.
GARBAGE_WAIT_S: Final = 600.0
# Code, not data: it is copied to every machine. The tree is checked whole before it is used.
BUNDLE_FILES_MAX: Final = 20_000

# --- of models ------------------------------------------------------------------------------------

# Examples of a version: sizes that differ. Every replica computes all of them before it serves.
EXAMPLES_MAX: Final = 8

# --- of agents and workers ------------------------------------------------------------------------

# Workers that an agent knows, those that have gone included: far more than a machine has cores,
# and a snapshot of them stays below a megabyte.
AGENT_WORKERS_MAX: Final = 1_000
# SIGKILL is sent again so often to what does not go: a process in the kernel's hands dies late.
KILL_AGAIN_S: Final = 2.0
# The shim of a worker ends it when no agent has come back for so long: time for an upgrade of the
# agent, and no machine is held for ever by workers that nobody asks for.
AGENT_AWAY_S: Final = 180.0
# A replica goes on answering without its agent for a day: somebody will have noticed by then.
REPLICA_AWAY_S: Final = 86_400.0
# From SIGTERM to SIGKILL for a worker whose agent did not come back.
AGENT_AWAY_NOTICE_S: Final = 30.0
# How often a shim whose agent is away looks for a new one.
AGENT_LOOK_S: Final = 0.5
# Ports of a worker: one where its group meets, one where a joiner gets the state.
WORKER_PORTS: Final = 2
# Below the range from which systems give out ports to clients.
WORKER_PORT_FIRST: Final = 20_000
WORKER_PORT_LAST: Final = 29_999
# How much of a worker's stderr is searched for its traceback.
STDERR_TAIL_BYTES: Final = 64 * 1024
# One message between a worker and its agent: a view of ten thousand workers, and some.
CHANNEL_MESSAGE_BYTES_MAX: Final = 1024 * 1024
# Attempts whose parts are remembered of a worker: the present one and one before it.
ATTEMPTS_KEPT: Final = 2
# A full disk is tried again so often; until then the agent decides nothing.
JOURNAL_RETRY_S: Final = 1.0
# A zygote forks within milliseconds; one that does not answer for so long is replaced.
ZYGOTE_ANSWER_S: Final = 5.0
# One request to a zygote, or its answer: a path, and a sentence.
ZYGOTE_MESSAGE_BYTES_MAX: Final = 16 * 1024
# A probe is asked so often, may take so long, and so many failures in a row mean no. Others ask
# every ten seconds; a loopback or a rack is asked twice as often for nothing.
PROBE_EVERY_S: Final = 5.0
PROBE_TIMEOUT_S: Final = 2.0
PROBE_FAILURES: Final = 3

# --- of coordinators ------------------------------------------------------------------------------

# A replica that is asked to end drains, and answers what it has begun: longer than its own bounds
# for that, together.
REPLICA_NOTICE_S: Final = 60.0
# Workers that were started together come up together: one view for all instead of one for each.
GATHER_S: Final = 2.0
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
# Failures that a job remembers, one for each round of restarts.
FAILURES_KEPT: Final = 32
# A reason may be a traceback; the end of it says most, and it is written to a znode.
REASON_CHARACTERS_MAX: Final = 4_000
# Why a checkpoint cannot be read, as a worker says it: a sentence, with the name of a file. It
# travels with every report of that worker.
UNREADABLE_WHY_CHARACTERS_MAX: Final = 400

# Reads that are on their way together: a round trip for all of them, and a reply that fits.
READS_IN_FLIGHT: Final = 200
# What users asked of a job, in words. A word is written with the act that it tells of.
ASKED_KEPT: Final = 64
ASKED_CHARACTERS_MAX: Final = 500
# Between two looks at least as long as the last one took, up to this: it leaves half a core.
TICK_GAP_S_MAX: Final = 0.1
# A job whose record failed for a reason of its own is left alone for so long.
TROUBLE_S: Final = 5.0

# --- of gRPC --------------------------------------------------------------------------------------

# One message. A thousand workers with their tracebacks and parts; a view of ten thousand workers
# has less than a hundredth of it.
RPC_MESSAGE_BYTES_MAX: Final = 32 * 1024 * 1024
# A stream that has not said who it is by then is not an agent's.
HELLO_S: Final = 5.0
# Connecting, certificates included, and one short call.
RPC_CALL_S: Final = 10.0
# An agent reports at least so often, also when nothing has changed.
REPORT_S: Final = 2.0
# Steps alone are reported at most so often; anything else at once. A checkpoint's lead is several
# times as long.
REPORT_STEPS_S: Final = 0.1
# But not more rarely than this: four reports may be lost before a stream is taken for dead.
REPORT_STEPS_S_MAX: Final = 2.5
# An agent that cannot reach the leader tries again so often; a new leader's address at once.
UPLINK_RETRY_S: Final = 0.05
UPLINK_RETRY_S_MAX: Final = 2.0
# Streams of one coordinator; a file each.
STREAMS_MAX: Final = 10_000
# A peer that does not answer HTTP/2 pings for so long is gone.
RPC_KEEPALIVE_S: Final = 10.0
# Streams have so long to end by themselves when the coordinator stops.
RPC_STOP_S: Final = 1.0
# Short: there is no list of revoked certificates, so a stolen one is useless soon. Long enough to
# survive a night without a leader.
CERTIFICATE_S: Final = 24 * 3_600.0
# Certificates hold from so long before they are made: clocks differ.
CLOCK_DIFFERENCE_S: Final = 300.0
# A join token is copied by hand, and then used.
JOIN_TOKEN_S: Final = 3_600.0
# An observer hears at least so often, so that it knows that the leader still leads.
OBSERVE_SILENCE_S: Final = 2.0

# --- of training ----------------------------------------------------------------------------------

# Callers that wait at a worker's listener: every member of a large job twice.
CALLERS_MAX: Final = 4_096
# Nothing came from a peer for so long: ask its listener whether it is there.
PROBE_AFTER_S: Final = 1.0
# One question at a peer's listener: far more than a round trip and a busy machine need.
PROBE_S: Final = 3.0
# A peer whose listener has not answered for so long, although asked several times, is suspected.
PEER_SILENCE_S: Final = 10.0
# When a peer is lost the next view is on its way: wait so long for it before the members of this
# one meet again (a link was cut, and nobody died).
REMEET_S: Final = 0.5

# The header of a part or of a state: names and shapes of a million entries.
STATE_HEADER_BYTES_MAX: Final = 256 * 1024 * 1024
# A store that is full or away is tried again so soon, then ever more rarely. Training goes on.
SAVE_AGAIN_S: Final = 0.5
SAVE_AGAIN_S_MAX: Final = 15.0

# Gradients travel in buckets of about this size: large enough that a stage is not all overhead,
# small enough that the first ones travel while the backward pass still works on the last.
BUCKET_BYTES: Final = 4 * 1024 * 1024

# --- of starting and ending a cluster -------------------------------------------------------------

# From its start until a leader leads and every agent is connected: a slow machine imports for
# seconds, recovers a large folder, and may wait for the session of a leader that was killed.
UP_S: Final = 90.0
# How often a waiting command looks whether what it waits for is there.
UP_LOOK_S: Final = 0.05
# Workers that are ended by `down` have so long to reach a step boundary.
DOWN_NOTICE_S: Final = 10.0
# A process that was asked to end and has not by then is killed; for an agent, after the notice.
DOWN_S: Final = 10.0
# A process whose parent is gone puts its things away for so long; then it ends in any case.
TIED_END_S: Final = 10.0
# A tied cluster's embedded server ends so soon after its last client.
TIED_LINGER_S: Final = 5.0
# A process that had lived for so long is started again at once when it dies, and counts as well.
KEEP_STEADY_S: Final = 60.0
# A process that is kept looks so often whether a supervisor is wanted, where none was until now.
KEEP_TURN_S: Final = 5.0
# A command that waits says for what after so long; not at once, since most is done by then.
WAIT_SAYS_S: Final = 1.5

# --- of serving -----------------------------------------------------------------------------------

# A computation shorter than this is done in the event loop itself: handing it to a thread and back
# costs about as much.
INLINE_S: Final = 0.001
# One that was thought short and took this long: a page fault or a busy machine. So many of them
# among so many, and the version computes in a thread from then on.
INLINE_LATE_S: Final = 0.005
# A computation is stuck when it takes longer than its service's time-out and this: the replica is
# not ready then. After the second it ends itself, because nothing else can end the computation.
STUCK_SLACK_S: Final = 5.0
STUCK_END_S: Final = 60.0
# Seconds after which a client may try again when a queue was full, or a version is not loaded.
RETRY_AFTER_S: Final = 1
# A version that is tried in a process of its own: it must have loaded by then.
TRIAL_S: Final = 300.0
# Characters of the reason why a version failed: it goes into the coordination plane.
LOAD_REASON_CHARACTERS_MAX: Final = 400

# Versions that a replica holds at a time: stable, next and previous, and some that gateways may
# still send to. A further rollout waits until one of those is gone.
HELD_VERSIONS_MAX: Final = 6
# Errors of a version count when they are so many, and beyond what chance would give (in standard
# deviations of a binomial): one error may be anybody's.
VERDICT_SIGMAS: Final = 2.0

# It looks so often while time alone brings something (a step is over), else so rarely.
ROLLOUT_LOOK_S: Final = 0.1
ROLLOUT_LOOK_S_MAX: Final = 2.0
# How often replicas are asked for their counts during a rollout, and for autoscaling.
STATS_POLL_S: Final = 0.25

# Replicas of one service: more than one gateway and one controller can watch.
SERVICE_REPLICAS_MAX: Final = 256
# `holdfast serve` and `rollout` wait so long at most; loading a large model takes minutes.
SERVE_WAIT_S: Final = 600.0
# A gateway that has applied the plan answers within so long: a busy machine, and some.
SERVE_ANSWER_S: Final = 60.0
# `unserve` waits so long for its replicas to drain and leave.
UNSERVE_WAIT_S: Final = 120.0

# A replica's health is asked for so often: a dead one gets no new request after about twice this.
HEALTH_CHECK_S: Final = 0.25
# An answer later than this counts as none; a busy machine is slow, and not dead. A replica that
# hangs holds up a change of its cluster for so long: Envoy checks all before it takes it.
HEALTH_CHECK_TIMEOUT_S: Final = 1.0
# Checks that must fail one after the other: one lost packet is no death.
HEALTH_CHECK_FAILURES: Final = 2
# A replica that breaks so many requests one after the other gets none for a while, at least the
# second; the third is how often that is looked at. Answers of the model do not count.
EJECT_FAILURES: Final = 5
EJECT_S: Final = 2.0
# A client that does nothing for so long is hung up on; so is one that is slow with its head.
CLIENT_IDLE_S: Final = 300.0
CLIENT_HEAD_S: Final = 10.0
# A replica whose registration is gone, and that is healthy, stays this long: time enough for its
# session to come back. The last ones of a service stay for the second.
LOST_REPLICA_S: Final = 60.0
# How often Envoy is asked for the health of what is lost.
LOST_LOOK_S: Final = 0.25
# The plane may change its server without anybody's knowledge being old.
STALE_AFTER_S: Final = 2.0
# The age in answers is at most this much behind.
STALE_STEP_S: Final = 2.0
# A file is taken after 4 ms, one for a hundred services after some hundred; after this it is looked
# at again, and written again.
ENVOY_TAKE_S: Final = 3.0
# A cluster's next change waits so long for the last one: longer than a replica that hangs holds it
# up (`HEALTH_CHECK_TIMEOUT_S`), on a machine that is busy.
ENVOY_SETTLE_S: Final = 2.0
# A log that has grown to this is set aside, and the one set aside before goes.
GATEWAY_LOG_BYTES_MAX: Final = 256 * 1024 * 1024

# One file, and how many full ones stay beside it.
PREDICTIONS_FILE_BYTES_MAX: Final = 64 * 1024 * 1024
PREDICTIONS_FILES_KEPT: Final = 4

# --- of HTTP --------------------------------------------------------------------------------------

# The HTTP server ends within this; what is in flight was answered before.
HTTP_STOP_S: Final = 2.0
# So much of what has come is parsed at a time. Requests behind one that waits for its answer wait
# unparsed but for one such piece.
HTTP_PIECE_BYTES: Final = 16 * 1024

# --- of what people see and wait for --------------------------------------------------------------

# A pod's name has at most 63 characters; a job's is a part of it.
JOB_NAME_CHARACTERS_MAX: Final = 50
# Waiting counts in points of priority: beyond this nobody would live to see the difference.
JOB_PRIORITY_MAX: Final = 1_000
# What one view can list within a frame of the coordination plane.
JOB_LANES_MAX: Final = 65_536

# A job's status is told when it has lasted so long.
RUN_SETTLE_S: Final = 1.0

# How often whoever waits for a job looks: as soon as a person would notice.
JOB_LOOK_S: Final = 0.3
# A large checkpoint over a slow line; whoever waits longer looks for the cause.
JOB_ACT_WAIT_S: Final = 1_800.0
# Many replicas, one after another, each with its own start.
JOB_UPDATE_WAIT_S: Final = 3_600.0

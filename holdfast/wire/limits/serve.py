"""Bounds of serving: replicas, protocols, gateways, rollouts. One heading for each part."""

from __future__ import annotations

from typing import Final

# --- a replica ---------------------------------------------------------------------------------

# A computation shorter than this is done in the event loop itself: handing it to a thread and back
# costs about as much.
INLINE_S: Final = 0.001
# One shorter than this is done at once: putting several requests together costs more.
INSTANT_S: Final = 0.00003
# One that was thought short and took this long: a page fault or a busy machine. So many of them
# among so many, and the version computes in a thread from then on.
INLINE_LATE_S: Final = 0.005
INLINE_LATE_MAX: Final = 50
INLINE_WINDOW: Final = 1_000
# One that takes this long moves the version into a thread at once: everybody waited for it.
INLINE_STALL_S: Final = 0.1
# It comes back after `INLINE_WINDOW` computations with no more late ones than that, the next time
# after twice as many, up to this: a version that is slow now and then costs ever less.
INLINE_WINDOW_MAX: Final = 1_000_000
# A computation is stuck when it takes longer than its service's time-out and this: the replica is
# not ready then. After the second it ends itself, because nothing else can end the computation.
STUCK_SLACK_S: Final = 5.0
STUCK_END_S: Final = 60.0
# How often a replica looks at its own computations; stuck is what it finds stuck so often in a row,
# since a process that was paused finds everything late, once.
STUCK_LOOK_S: Final = 0.5
STUCK_LOOKS: Final = 4
# A replica reads a course so long after it has changed, drawn anew each time: when conductor and
# gateways have done what is to be done at once, and not all replicas of a machine together.
COURSE_PAUSE_S: Final = (0.06, 0.15)
# A full replica lets a gateway try another one, but only for so many requests as are this share of
# those that it has answered, and for so many at once after a quiet time: where all are full, each
# such try is work for nothing.
ELSEWHERE_SHARE: Final = 0.1
ELSEWHERE_MAX: Final = 10.0
# How much the last computation counts in what is expected of the next ones.
COST_WEIGHT: Final = 0.2
# Seconds after which a client may try again when a queue was full, or a version is not loaded.
RETRY_AFTER_S: Final = 1
# By how much the thread and the process that load a version step back, as `nice` has it: they take
# what the requests leave over. The thread not far: it holds Python's lock now and then, and whoever
# waits for that lock waits for the thread to be given a core. Nor the thread of Envoy that is told
# what to do: it checks the replicas too.
LOADING_NICE: Final = 5
TRIAL_NICE: Final = 10
# The process not for longer than this, fetching and trying together: on a machine that is busy for
# hours a version must come to an end too, and somebody waits for it.
TRIAL_PATIENCE_S: Final = 10.0
# By how much those step back who look after things and answer nobody: a conductor, and what a
# gateway watches with. Not far: a rollback waits for them.
GIVE_WAY_NICE: Final = 3
# The last one that there is.
NICE_MAX: Final = 19
# The system changes the priority of a session ten times a second at most, of all that there are.
AUTOGROUP_AGAIN_S: Final = 0.25
# The slice of time that they ask the system for: longer than its own, which have 3 ms at most. So
# whoever answers interrupts them at once. Not much longer: where others compute all the time, they
# would be interrupted less often.
LOADING_SLICE_S: Final = 0.005
# Python changes threads so often while one computes: a request waits no longer for a loading one.
SWITCH_INTERVAL_S: Final = 0.0005
# A version that is tried in a process of its own: it must have loaded by then.
TRIAL_S: Final = 300.0
# Replicas of one machine fetch and try a version one after the other. One waits so long at most: a
# trial that hangs has been ended by then. And so often it looks.
TURN_S: Final = TRIAL_S
TURN_LOOK_S: Final = 0.05
# A replica that serves nothing, and loads what nobody wants any more, ends itself after this: what
# is wanted instead cannot be loaded before.
LOAD_ABANDONED_S: Final = 5.0
# The store or the plane was away while a version was to be loaded: tried again after this.
LOAD_RETRY_S: Final = 1.0
LOAD_RETRY_S_MAX: Final = 15.0
# Times that the example is computed before a version is ready, at each size: the first is slow. A
# model that computes for long is not asked again and again: none begins after the second.
WARM_UP_TRIES: Final = 5
WARM_UP_S: Final = 0.25
# So many processes that died while they loaded a version: it is not loaded on that machine again
# until users ask anew. More than one, because a process may be killed at any moment by others.
LOAD_DEATHS_MAX: Final = 3
# Versions whose files stay on a machine although no replica there holds them: for the way back.
SHELF_VERSIONS_KEPT: Final = 2
# Files of a version that one replica has verified so recently are not read again by the others of
# its machine, which load it at the same time.
VERIFIED_S: Final = 30.0
# Characters of the reason why a version failed: it goes into the coordination plane.
LOAD_REASON_CHARACTERS_MAX: Final = 400
# A version that is not held any more still answers those who chose it before: for the first at
# least, and for as long as somebody whose body is still coming has chosen it, up to the second.
CHOSEN_GRACE_S: Final = 1.0
UNLOAD_WAIT_S: Final = 60.0
UNLOAD_LOOK_S: Final = 0.05
# Traces of replicas that are gone, in the coordination plane: more than late requests come from.
REPLICA_TURNS_KEPT: Final = 100
# A replica that is to go says so first. Gateways see it and stop sending; they have the first at
# least, and it goes when nothing came for the second; after the third it goes anyway: the notice
# that coordinators give (`NOTICE_S`) covers it, and the few seconds that its servers take to end.
DRAIN_S_MIN: Final = 1.0
DRAIN_QUIET_S: Final = 0.5
DRAIN_S_MAX: Final = 20.0
# The coordination plane is told first; when it is away, the drain begins after this.
DRAIN_SHOWN_S: Final = 2.0
# It leaves the plane within this; a plane that is away finds out by itself.
LEAVE_PLANE_S: Final = 5.0
# How often it looks whether it is quiet.
DRAIN_LOOK_S: Final = 0.05
# A replica that has grown by so much gives back what is free of it, once it has stopped growing: a
# few large bodies, and more than it grows by in an ordinary hour.
MEMORY_GROWN_BYTES_MIN: Final = 32 * 1024 * 1024
# How often it looks.
MEMORY_LOOK_S: Final = 2.0
# The errors of a version go into the log at most so often.
MODEL_ERROR_LOG_S: Final = 1.0

# --- rollouts ----------------------------------------------------------------------------------

# Versions that a replica holds at a time: stable, next and previous, and some that gateways may
# still send to. A further rollout waits until one of those is gone.
HELD_VERSIONS_MAX: Final = 6
# A version without requests is unloaded after its service's time-out and this: by then nobody
# waits for an answer of it, however often it was tried again.
UNLOAD_GRACE_S: Final = 5.0
# Errors of a version count when they are so many, and beyond what chance would give (in standard
# deviations of a binomial): one error may be anybody's.
VERDICT_ERRORS_MIN: Final = 2
VERDICT_SIGMAS: Final = 2.0
# So many answers lie above the quantile that is compared: of 500 or more it is the p99.
VERDICT_SLOWER_MIN: Final = 5
# A step that saw an error among too few requests is held longer, up to so many times `hold_s`.
VERDICT_HOLDS_MAX: Final = 6
# A version's outputs are compared with the stable version's on the same requests, one at a time and
# while neither has others waiting. A replica spends this share of its time on that: with more, the
# requests that wait for such a computation would show in the p99.
SHADOW_SHARE: Final = 0.05
# Values of one output that are compared of one request: a longer one takes the loop for too long.
SHADOW_VALUES_MAX: Final = 65_536
# Larger values count as this: their squares must have a sum.
SHADOW_VALUE_MAX: Final = 1e100
# A guard counts when this many answers have broken it: one may be the request's own fault.
GUARD_BREACHES_MIN: Final = 2
# Replicas that could not load a version, on several machines, when no other one could.
LOAD_FAILURES_ENOUGH: Final = 2
# Replicas that crashed by their own fault while they loaded a version: the second is no accident.
LOADING_CRASHES_MAX: Final = 2
# Replicas that were killed, nobody knows why: so many within so short a time and the version is
# to blame. Somebody who kills machines one by one is slower.
DEATHS_MAX: Final = 5
DEATHS_WINDOW_S: Final = 5.0
# Deaths that a conductor remembers for each service.
DEATHS_KEPT: Final = 64
# Replicas whose word on a version's outputs a conductor keeps, also of those that have died: twice
# as many as a service has.
WATCHED_KEPT: Final = 512
# Replicas whose nodes a conductor has removed, and does not remove again: far more than can live on
# without a placement at once.
DISMISSED_KEPT: Final = 1_024
# A reason in a course: every replica and gateway reads it.
COURSE_REASON_CHARACTERS_MAX: Final = 400
# Requests that a replica carries at a time with ease.
AUTOSCALE_IN_FLIGHT: Final = 8
# The last seconds ask for more replicas; a whole minute must ask for fewer.
AUTOSCALE_UP_S: Final = 6.0
AUTOSCALE_DOWN_S: Final = 60.0
# Refused requests and slow answers tell that more are needed, but not how many: so much at a time.
AUTOSCALE_GROWTH: Final = 1.5
# An answer is slow when it takes this part of the service's time-out.
AUTOSCALE_SLOW_FRACTION: Final = 0.5

# --- the conductor -----------------------------------------------------------------------------

# It looks so often while time alone brings something (a step is over), else so rarely.
CONDUCTOR_LOOK_S: Final = 0.1
CONDUCTOR_LOOK_S_MAX: Final = 2.0
# How often replicas are asked for their counts during a rollout, and for autoscaling.
STATS_POLL_S: Final = 0.25
STATS_POLL_CALM_S: Final = 1.0
# A replica that does not answer by then is counted next time; it may be dead already.
STATS_TIMEOUT_S: Final = 1.0
# Replicas that are asked at the same time, and the largest answer.
STATS_POLLERS: Final = 16
STATS_BYTES_MAX: Final = 1024 * 1024
# Samples kept for autoscaling: a little more than `AUTOSCALE_DOWN_S` of them.
SAMPLES_KEPT: Final = 512

# --- services as their users see them ------------------------------------------------------------

# Replicas of one service: more than one gateway and one conductor can watch.
SERVICE_REPLICAS_MAX: Final = 256
# API keys of one service: each request is compared with all of them.
SERVICE_KEYS_MAX: Final = 64
# Random bytes of an API key: nobody guesses it, so a plain SHA-256 keeps it.
SERVICE_KEY_BYTES: Final = 24
# A replica that fails is started again after the first, then ever later up to the second. A service
# that is down for want of a store or a model should be back soon after they are.
REPLICA_BACKOFF_S: Final = 0.5
REPLICA_BACKOFF_S_MAX: Final = 30.0
# A replica that ran so long has earned a fresh start.
REPLICA_FORGIVEN_S: Final = 300.0
# Nodes of a removed service that go in one transaction.
SERVICE_NODES_REMOVED: Final = 200
# `holdfast serve` and `rollout` wait so long at most; loading a large model takes minutes.
SERVE_WAIT_S: Final = 600.0
# A gateway that has applied the course answers within so long: a busy machine, and some.
SERVE_ANSWER_S: Final = 60.0
# How often they look.
SERVE_LOOK_S: Final = 0.1
# `unserve` waits so long for its replicas to drain and leave.
UNSERVE_WAIT_S: Final = 120.0

# --- the gateway -------------------------------------------------------------------------------

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
EJECT_S_MAX: Final = 20.0
EJECT_LOOK_S: Final = 0.5
# How often a gateway asks its Envoy whom it has ejected, and of how many replicas of a service it
# tells that in the plane: a node has a megabyte.
BREAKERS_LOOK_S: Final = 1.0
BREAKERS_TOLD_MAX: Final = 64
# Only when fewer of a version's replicas than this are healthy (so: none) all of them are tried.
# Any higher, and requests would go to the dead while somebody could answer.
PANIC_PERCENT: Final = 1.0
# With others to go to, a region keeps its requests until less than 1/1.4 = 71 % of it is healthy.
SPILL_PERCENT: Final = 140
# A canary's users stay with it while one of its replicas is healthy. (Envoy has no "always".)
STAY_PERCENT: Final = 1_000_000
# A request is tried so often on each level: where it was to go, then elsewhere, and last where only
# another version is. Each time a replica that was not tried yet is looked for, so often: they are
# drawn by lot.
TRIES_OF_LEVEL: Final = 2
RETRY_DRAWS: Final = 20
RETRY_BASE_S: Final = 0.005
RETRY_BASE_S_MAX: Final = 0.1
# A part of the requests in flight that may be retries. When a region is lost, all of them are. What
# a full queue has refused is none of them but for a few (`ELSEWHERE_SHARE`).
RETRY_BUDGET_PERCENT: Final = 100.0
RETRIES_AT_ONCE_MIN: Final = 128
# A try may take this part of a request's time: the rest is for another replica.
TRY_FRACTION: Final = 0.5
# What Envoy keeps open to, and has waiting for, the replicas of one version. Replicas refuse far
# earlier; this is for Envoy's own memory.
UPSTREAM_CONNECTIONS_MAX: Final = 8_192
UPSTREAM_REQUESTS_MAX: Final = 65_536
# A new connection on the same network, or none.
UPSTREAM_CONNECT_S: Final = 1.0
# Below what replicas close by themselves: a request never meets a connection that just ends.
UPSTREAM_IDLE_S: Final = 30.0
# Places on the ring for all replicas of a version; with few of them more is only more even.
RING_PLACES_MIN: Final = 1_024
# A client that does nothing for so long is hung up on; so is one that is slow with its head.
CLIENT_IDLE_S: Final = 300.0
CLIENT_HEAD_S: Final = 10.0
# Connections of clients; each takes some 30 KiB.
CLIENT_CONNECTIONS_MAX: Final = 20_000
# Requests at the same time on one HTTP/2 connection; more is a mistake or an attack.
CLIENT_STREAMS_MAX: Final = 1_000
# How much Envoy keeps of a client's connection before it stops reading from it.
CLIENT_BUFFER_BYTES: Final = 1024 * 1024
# A replica whose registration is gone, and that is healthy, stays this long: time enough for its
# session to come back. The last ones of a service stay for the second.
LOST_REPLICA_S: Final = 60.0
LOST_LAST_S: Final = 3_600.0
# How often Envoy is asked for the health of what is lost.
LOST_LOOK_S: Final = 0.25
# The plane may change its server without anybody's knowledge being old.
STALE_AFTER_S: Final = 2.0
# The age in answers is at most this much behind.
STALE_STEP_S: Final = 2.0
# The last knowledge is written down again so often, so that its age on disk is true.
MEMORY_S: Final = 15.0
# Envoy from its start to its first answer: 0.3 s on a quiet machine.
ENVOY_START_S: Final = 60.0
# One question to Envoy's own door.
ENVOY_ASK_S: Final = 5.0
# An Envoy that has not answered there for so long is ended, and another one started.
ENVOY_SILENT_S: Final = 20.0
# A file is taken after 4 ms, one for a hundred services after some hundred; after this it is looked
# at again, and written again.
ENVOY_TAKE_S: Final = 3.0
# Between two looks whether a file was taken: at first, and at most.
ENVOY_TAKE_LOOK_S: Final = 0.001
ENVOY_TAKE_LOOK_S_MAX: Final = 0.02
# A cluster's next change waits so long for the last one: longer than a replica that hangs holds it
# up (`HEALTH_CHECK_TIMEOUT_S`), on a machine that is busy.
ENVOY_SETTLE_S: Final = 2.0
# A new cluster is asked for by no route before its replicas were checked; not for ever.
ENVOY_WARM_S: Final = 5.0
# What Envoy has is compared with what it should have, this often.
ENVOY_COMPARE_S: Final = 5.0
# Envoy that died is started again at once; one that dies within this of its start, after a pause.
ENVOY_LIFE_S_MIN: Final = 5.0
ENVOY_PAUSE_S: Final = 0.5
ENVOY_PAUSE_S_MAX: Final = 10.0
# What no request waits for is told to Envoy so much later, together with what comes meanwhile.
GATEWAY_GATHER_S: Final = 0.1
# Requests in flight when a gateway is stopped: they have so long.
GATEWAY_DRAIN_S: Final = 5.0
# Connections that clients keep open hear with their next answer that they shall close.
GATEWAY_CLOSE_S: Final = 1
GATEWAY_DRAIN_LOOK_S: Final = 0.05
# Gateways that share one address: each has all of Envoy, and checks every replica by itself.
GATEWAYS_TOGETHER_MAX: Final = 8
# Envoy gives memory back to the system that it has freed: at once while it holds more than the
# first, which costs twice the work for a body; of less so many bytes so often, once it did not need
# them for five minutes.
ENVOY_HELD_BYTES_MAX: Final = 256 * 1024 * 1024
ENVOY_RELEASE_BYTES: Final = 32 * 1024 * 1024
ENVOY_RELEASE_S: Final = 1.0
# Envoy ends soon after it was asked to.
ENVOY_END_S: Final = 5.0
# A log that has grown to this is set aside, and the one set aside before goes.
GATEWAY_LOG_BYTES_MAX: Final = 256 * 1024 * 1024
# Lines of the access log reach the file after this at the latest.
GATEWAY_LOG_FLUSH_S: Final = 1.0

# --- protocols and the cache -------------------------------------------------------------------

# What gateways show to replicas: nobody guesses it.
SERVICE_SECRET_BYTES: Final = 32
# A service that gets a secret while it is served: gateways and replicas hear of it within a second,
# or as soon as the plane is back for them.
SERVICE_SECRET_GRACE_S: Final = 30.0
# A gRPC server whose limit has changed lets go of its port for the next one: within so long, and it
# is tried so often.
GRPC_PORT_S: Final = 10.0
GRPC_AGAIN_S: Final = 0.005
# Calls of one replica at once, queues included; the rest is refused at once.
GRPC_CALLS_MAX: Final = 4_096
# Whoever watches a replica's health by gRPC hears of a change after this at the latest.
HEALTH_WATCH_S: Final = 0.5
# The sentence of an error travels in a header: all headers together have eight kilobytes.
GRPC_ERROR_CHARACTERS_MAX: Final = 2_000
# Answers that a replica keeps, in bytes, however few entries they are: memory is the model's.
CACHE_BYTES_MAX: Final = 256 * 1024 * 1024
# What an entry costs beside its arrays: dictionaries and array heads.
CACHE_ENTRY_BYTES: Final = 512
# A request waits so long for Redis. Most models compute in less.
REDIS_GET_S: Final = 0.005
# One exchange with Redis, whoever still waits for it; and a new connection, TLS included.
REDIS_TALK_S: Final = 0.1
REDIS_CONNECT_S: Final = 1.0
# So many failures one after the other, and nobody asks Redis until it answers a ping again.
REDIS_FAILURES_MAX: Final = 5
REDIS_PAUSE_S: Final = 0.5
REDIS_PAUSE_S_MAX: Final = 15.0
# Questions and answers that wait to be sent; more is a Redis that is too slow to be of use.
REDIS_WAITING_MAX: Final = 1_024
REDIS_WAITING_BYTES_MAX: Final = 32 * 1024 * 1024
# In one exchange.
REDIS_BATCH_MAX: Final = 128
# A larger answer is not given to Redis: everybody else would wait for its transfer.
REDIS_VALUE_BYTES_MAX: Final = 1024 * 1024
# Kept in Redis so long: versions that nobody serves any more go by themselves.
REDIS_KEEP_S: Final = 3_600
# Predictions that wait to be written down: a tenth of a second of the fastest replica.
PREDICTIONS_WAITING_MAX: Final = 4_096
PREDICTIONS_WAITING_BYTES_MAX: Final = 64 * 1024 * 1024
# What waits is written before a replica ends, unless the disk hangs.
PREDICTIONS_CLOSE_S: Final = 5.0
# Lines reach the file after this at the latest, many at once.
PREDICTIONS_FLUSH_S: Final = 0.1
# Lines that are written in one piece: a file is at most so much larger than its bound.
PREDICTIONS_BATCH_MAX: Final = 256
# One file, and how many full ones stay beside it.
PREDICTIONS_FILE_BYTES_MAX: Final = 64 * 1024 * 1024
PREDICTIONS_FILES_KEPT: Final = 4
# Elements of each tensor in a line, and characters of a text.
PREDICTIONS_ELEMENTS_MAX: Final = 64
PREDICTIONS_TEXT_CHARACTERS_MAX: Final = 200

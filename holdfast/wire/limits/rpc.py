"""Bounds between agents and the coordinator."""

from __future__ import annotations

from typing import Final

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
# Steps alone are reported at most so often; anything else at once. A checkpoint's lead is several
# times as long.
REPORT_STEPS_S: Final = 0.1
# Reports of steps a second that a leader wants of all its agents together: with more of them each
# reports more rarely. A report costs it half a millisecond, and half of its time is for deciding.
REPORTS_PER_S_MAX: Final = 1_000
# But not more rarely than this: four reports may be lost before a stream is taken for dead.
REPORT_STEPS_S_MAX: Final = 2.5
# A stream without a report for so long is cut: its agent hangs, or the network lost it.
REPORT_SILENCE_S: Final = 5 * REPORT_S
# An agent that cannot reach the leader tries again so often; a new leader's address at once.
UPLINK_RETRY_S: Final = 0.05
UPLINK_RETRY_S_MAX: Final = 2.0
# Files of one process of ours: twenty thousand clients of a server or a gateway, what it opens
# itself for them, and some. Not all that a system may allow: there are programs that go over every
# possible file when they start.
FILES_WANTED: Final = 65_536
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
# A coordinator that cannot listen with its new certificate tries again so often, as long as the old
# one holds.
RENEW_AGAIN_S: Final = 1.0
# The cluster's own authority: it outlives the cluster.
AUTHORITY_S: Final = 10 * 365 * 24 * 3_600.0
# Certificates hold from so long before they are made: clocks differ.
CLOCK_DIFFERENCE_S: Final = 300.0
# A join token is copied by hand, and then used.
JOIN_TOKEN_S: Final = 3_600.0
JOIN_TOKEN_S_MAX: Final = 7 * 24 * 3_600.0
# Enough for a rack that is set up at once; each use is written into one record.
JOIN_TOKEN_USES_MAX: Final = 1_000
# Uses of one token that meet are counted one after the other: each loses to another one at most so
# often before it is asked to come again.
JOIN_ATTEMPTS: Final = 100
# A token with the authority's certificate in it has about a thousand characters.
TOKEN_CHARACTERS_MAX: Final = 8_192
# A request for a certificate has a key and a name.
CERTIFICATE_REQUEST_BYTES_MAX: Final = 16 * 1024
# A message of a machine that wants to join: such a request, and some words.
JOIN_MESSAGE_BYTES_MAX: Final = 64 * 1024
# People who look at jobs at once, on one coordinator: each costs a look a few times a second.
OBSERVERS_MAX: Final = 64
# What people are shown is looked at so often; nobody reads faster.
OBSERVE_S: Final = 0.2
# An observer hears at least so often, so that it knows that the leader still leads.
OBSERVE_SILENCE_S: Final = 2.0

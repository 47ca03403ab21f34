"""Bounds of a replica's HTTP server."""

from __future__ import annotations

from typing import Final

# A client that sends its body slower than this is hung up on.
BODY_S: Final = 30.0
# A head of a request, in bytes: Envoy's own limit is 60 KiB.
REQUEST_HEAD_BYTES_MAX: Final = 64 * 1024
# Paths, and marks of answers, that are remembered: both come from outside.
HTTP_ROUTES_MAX: Final = 1_024
# Longer ones are not.
HTTP_REMEMBERED_BYTES_MAX: Final = 1_024
# The part of it that is the path and the query.
REQUEST_TARGET_BYTES_MAX: Final = 32 * 1024
# Headers of one request; Envoy's own limit is 100.
REQUEST_HEADERS_MAX: Final = 128
# The HTTP server ends within this; what is in flight was answered before.
HTTP_STOP_S: Final = 2.0
# A connection on which nothing comes is closed after this: longer than Envoy keeps an idle one, so
# that it is Envoy who closes it, and no request meets a connection that is being closed.
HTTP_IDLE_S: Final = 2 * 3600.0
# A head that has begun is there within this, or its client is hung up on.
HTTP_HEAD_S: Final = 10.0
# A client that reads nothing of its answer for so long is hung up on.
HTTP_UNREAD_S: Final = 30.0
# Who was refused before all was read may still be sending. What comes is thrown away for so long:
# to hang up earlier would lose the answer on its way.
HTTP_LINGER_S: Final = 5.0
# How often connections are looked at for all of these.
HTTP_LOOK_S: Final = 1.0
# A body that nobody asked for, or of a request that is refused, is read up to this size, and the
# connection stays; a larger one is not read.
HTTP_IGNORED_BODY_BYTES_MAX: Final = 64 * 1024
# So much of what has come is parsed at a time. Requests behind one that waits for its answer wait
# unparsed but for one such piece.
HTTP_PIECE_BYTES: Final = 16 * 1024
# A body in chunks may be so many times longer on its way: chunks of one byte are.
HTTP_CHUNKED_FACTOR: Final = 8
# An answer of this size is not copied once more to stand in one piece with its head.
HTTP_COPIED_BYTES_MAX: Final = 64 * 1024
# Answers that were written and not taken by a client: from here on its next requests wait.
HTTP_UNSENT_BYTES_SLOW: Final = 256 * 1024
# Connections of one replica: twice what one Envoy opens to all replicas of a version.
HTTP_CONNECTIONS_MAX: Final = 16_384
# A body of which no more is announced is small: nobody counts it.
HTTP_SMALL_BODY_BYTES_MAX: Final = 10_000
# A shorter answer is not packed: the head of gzip and a packet's worth outweigh what is saved.
PACKED_BYTES_MIN: Final = 256
# How hard it is tried, of 9: on numbers more effort saves little and takes several times as long.
PACKING_LEVEL: Final = 1
# Bodies that a replica has in its hands at once; one more that is not small gets 503.
BODIES_BYTES_MAX: Final = 1024 * 1024 * 1024
# Connections that wait to be accepted: gateways connect again all at once after a restart.
HTTP_BACKLOG: Final = 1_024
# Requests that a replica has in its hands at once, queues included; the rest waits in the sockets.
HTTP_REQUESTS_MAX: Final = 4_096

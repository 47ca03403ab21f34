"""What goes over the wire to a server that speaks RESP, and what its errors become."""

from __future__ import annotations

import random
import ssl

import pytest
import redis
from redis.crc import key_slot

from holdfast.features.online import newest
from holdfast.features.online.redis_cluster import slot_of
from holdfast.features.online.resp import pack, parse_host
from holdfast.features.online.resp_failures import translate
from holdfast.features.rows import RowVersion, encode
from holdfast.features.table import Table
from holdfast.wire.errors import (
    Full,
    HoldfastError,
    Refused,
    TimedOut,
    Unavailable,
    Usage,
)

TABLE = Table("drivers", key="driver", columns={"trips": "int64"}, ttl="60s")


def test_a_command_says_the_length_of_each_part() -> None:
    assert pack(b"GET", b"a\r\n\0") == b"*2\r\n$3\r\nGET\r\n$4\r\na\r\n\0\r\n"
    assert pack(b"SET", b"", b"\xff") == b"*3\r\n$3\r\nSET\r\n$0\r\n\r\n$1\r\n\xff\r\n"


def test_slots_are_those_of_redis_for_keys_with_and_without_braces() -> None:
    chance = random.Random(1)
    keys = [bytes(chance.choices(b"ab{}\0\xff", k=chance.randrange(1, 12))) for _ in range(5_000)]
    keys += [b"{user}a", b"{user}b", b"{}a", b"a{", b"}{", b"{{a}}", b"foo{bar}{zap}"]
    assert [slot_of(key) for key in keys] == [key_slot(key) for key in keys]
    assert slot_of(b"{user}a") == slot_of(b"{user}b")


@pytest.mark.parametrize(
    ("at_us", "over"),
    [(0, 60_000), (1_999, 60_001), (-1, 59_999), (-(2**63), None), (2**63 - 1, 2**52)],
)
def test_the_time_of_a_row_is_over_so_long_after_its_event(at_us: int, over: int | None) -> None:
    data = encode(TABLE, RowVersion(at_us, 1, 1), {"driver": "a"}).data
    found = int(newest.over_at(data, TABLE.ttl_s))
    assert found == over if over is not None else found < 0
    assert newest.over_at(data, None) == b"-"


def test_a_host_may_be_an_address_of_ipv6() -> None:
    assert (parse_host("h:7"), parse_host("[::1]:8")) == (("h", 7), ("::1", 8))
    with pytest.raises(Usage):
        parse_host("h")


def certificate_refused() -> Exception:
    try:
        try:
            raise ssl.SSLCertVerificationError("self-signed certificate")
        except OSError as error:
            raise redis.ConnectionError("Error 1 connecting") from error
    except redis.ConnectionError as error:
        return error


@pytest.mark.parametrize(
    ("error", "kind", "fix"),
    [
        (redis.ConnectionError("Error 111 connecting"), Unavailable, "whether the server runs"),
        (ConnectionResetError("reset"), Unavailable, "whether the server runs"),
        (redis.TimeoutError("Timeout reading"), TimedOut, "overloaded"),
        (redis.BusyLoadingError("loading the dataset in memory"), Unavailable, "on disk"),
        (redis.ReadOnlyError("You can't write against a replica"), Unavailable, "takes writes"),
        (redis.AuthenticationError("invalid username-password pair"), Refused, "password-file"),
        (redis.exceptions.NoPermissionError("User has no permissions"), Refused, "ACL SETUSER"),
        (redis.exceptions.ClusterDownError("The cluster is down"), Unavailable, "CLUSTER INFO"),
        (redis.OutOfMemoryError("command not allowed"), Full, "maxmemory"),
        (redis.ResponseError("MISCONF Redis is configured to save"), Full, "disk"),
        (redis.ResponseError("BUSY Redis is busy running a script"), Unavailable, "SCRIPT KILL"),
        (
            redis.ResponseError(
                "Error running script (call to f_1): @user_script:30: @user_script: 30: -OOM"
                " command not allowed when used memory > 'maxmemory'."
            ),
            Full,
            "maxmemory",
        ),
        (
            redis.ResponseError("WRONGTYPE Operation against a key script: 1a, on @user_script"),
            Refused,
            "prefix",
        ),
        (redis.ResponseError("ERR This instance has cluster support disabled"), Usage, "cluster="),
        (redis.ResponseError("unknown command 'EVALSHA'"), Refused, "settings"),
        (certificate_refused(), Refused, "verify"),
        (Full("no connection"), Full, ""),
    ],
)
def test_each_error_says_whether_to_try_again_and_what_to_do(
    error: Exception, kind: type[HoldfastError], fix: str
) -> None:
    made = translate(error, "rows cannot be written", "h:1")
    assert type(made) is kind
    assert fix in made.fix
    assert made is error or (made.what == "rows cannot be written" and "h:1" in made.why)

"""Kafka's errors become errors of our tree, with Kafka's name in the reason."""

from __future__ import annotations

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException

from holdfast.topics import failures
from holdfast.wire import errors


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("PRODUCER_FENCED", errors.Fenced),
        ("INVALID_PRODUCER_EPOCH", errors.Fenced),
        ("_MSG_TIMED_OUT", errors.TimedOut),
        ("_TRANSPORT", errors.Unavailable),
        ("NOT_ENOUGH_REPLICAS", errors.Unavailable),
        ("KAFKA_STORAGE_ERROR", errors.Full),
        ("_PURGE_INFLIGHT", errors.Cancelled),
        ("UNKNOWN_TOPIC_OR_PART", errors.Missing),
        ("MSG_SIZE_TOO_LARGE", errors.TooLarge),
        ("ILLEGAL_GENERATION", errors.Conflict),
        ("CONCURRENT_TRANSACTIONS", errors.RetryError),
        ("TOPIC_AUTHORIZATION_FAILED", errors.Refused),
        ("_AUTHENTICATION", errors.Refused),
        ("INVALID_CONFIG", errors.Usage),
        ("UNSUPPORTED_VERSION", errors.TerminalError),
    ],
)
def test_an_error_of_kafka_is_one_of_ours(name: str, kind: type[errors.HoldfastError]) -> None:
    error = KafkaError(getattr(KafkaError, name))
    for given in (error, KafkaException(error)):
        found = failures.translate(given, "it cannot be done")
        assert type(found) is kind
        assert found.what == "it cannot be done"
        assert name.lstrip("_") in found.why


def test_the_cause_of_a_fatal_error_is_found_in_its_words() -> None:
    words = KafkaError(KafkaError.FENCED_INSTANCE_ID).str()
    fatal = KafkaError(KafkaError._FATAL, f"Fatal error: {words}: and so on", fatal=True)
    assert isinstance(failures.translate(fatal, "reading"), errors.Fenced)
    other = KafkaError(KafkaError._FATAL, "Fatal error: nobody knows", fatal=True)
    assert type(failures.translate(other, "reading")) is errors.TerminalError


def test_every_name_that_is_translated_is_one_that_kafka_has() -> None:
    known = {name.lstrip("_") for name in dir(confluent_kafka.KafkaError) if name.isupper()}
    assert set(failures._BY_NAME) <= known

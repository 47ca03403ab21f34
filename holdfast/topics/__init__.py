"""Topics: partitioned, durable, ordered logs that parts of the system, and users, write and read.

    with topics.connect("kafka://127.0.0.1:9092") as cluster:
        cluster.producer(codec=topics.JSON).send("clicks", {"page": 3}, key="user-7").result()
        for record in cluster.consumer("clicks", group="counters", codec=topics.JSON):
            count(record.value)

`broker` is the server that comes with Holdfast and speaks Kafka's wire protocol; on many machines
a real Kafka takes its place. Nothing behind the protocol is ours alone. The modules beside it are
the library for both, thin over confluent-kafka, which does the work:

- `connection`   `connect`, and what is opened of a cluster; it closes all of it
- `producer`     futures, back-pressure, and an end that says what was not written
- `consumer`     by group or alone; commits only what this member still reads
- `transaction`  consume, transform, produce as one
- `subscription` a function that is called for each record, in a thread
- `triggered`    what a job reads that a trigger has started
- `admin`        topics, groups and their lag
- `records`, `codecs`, `address`, `failures`, `kafka`: what these share
"""

from holdfast.topics.address import TopicsAddress
from holdfast.topics.admin import GroupSummary, PartitionLag, TopicAdmin, TopicSummary
from holdfast.topics.codecs import BYTES, JSON, TEXT, RecordCodec, json_of, msgpack
from holdfast.topics.connection import Connection, connect
from holdfast.topics.consumer import Consumer
from holdfast.topics.producer import Producer
from holdfast.topics.records import Record, TopicPosition
from holdfast.topics.subscription import Subscription
from holdfast.topics.transaction import TopicTransaction
from holdfast.topics.triggered import read_range, triggered

__all__ = [
    "BYTES",
    "JSON",
    "TEXT",
    "Connection",
    "Consumer",
    "GroupSummary",
    "PartitionLag",
    "Producer",
    "Record",
    "RecordCodec",
    "Subscription",
    "TopicAdmin",
    "TopicPosition",
    "TopicSummary",
    "TopicTransaction",
    "TopicsAddress",
    "connect",
    "json_of",
    "msgpack",
    "read_range",
    "triggered",
]

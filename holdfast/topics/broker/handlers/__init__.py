"""What each request does: from its message to commands and back. One function for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from holdfast.topics.broker.handlers import (
    access,
    cluster,
    configs,
    groups,
    offsets,
    records,
    topics,
    transactions,
)
from holdfast.topics.broker.protocol import apis
from holdfast.topics.broker.protocol.apis import Api
from holdfast.topics.broker.request import ClientRequest

if TYPE_CHECKING:
    from holdfast.topics.broker.broker import Broker

HANDLERS: Final[dict[Api, Callable[[Broker, ClientRequest], None]]] = {
    apis.PRODUCE: records.produce,
    apis.FETCH: records.fetch,
    apis.LIST_OFFSETS: records.list_offsets,
    apis.OFFSET_FOR_LEADER_EPOCH: records.offset_for_leader_epoch,
    apis.DELETE_RECORDS: records.delete_records,
    apis.API_VERSIONS: cluster.api_versions,
    apis.METADATA: cluster.metadata,
    apis.DESCRIBE_CLUSTER: cluster.describe_cluster,
    apis.DESCRIBE_TOPIC_PARTITIONS: cluster.describe_topic_partitions,
    apis.FIND_COORDINATOR: cluster.find_coordinator,
    apis.CREATE_TOPICS: topics.create_topics,
    apis.DELETE_TOPICS: topics.delete_topics,
    apis.CREATE_PARTITIONS: topics.create_partitions,
    apis.DESCRIBE_CONFIGS: configs.describe_configs,
    apis.ALTER_CONFIGS: configs.alter_configs,
    apis.INCREMENTAL_ALTER_CONFIGS: configs.incremental_alter_configs,
    apis.JOIN_GROUP: groups.join_group,
    apis.SYNC_GROUP: groups.sync_group,
    apis.HEARTBEAT: groups.heartbeat,
    apis.LEAVE_GROUP: groups.leave_group,
    apis.DESCRIBE_GROUPS: groups.describe_groups,
    apis.LIST_GROUPS: groups.list_groups,
    apis.DELETE_GROUPS: groups.delete_groups,
    apis.OFFSET_COMMIT: offsets.offset_commit,
    apis.OFFSET_FETCH: offsets.offset_fetch,
    apis.OFFSET_DELETE: offsets.offset_delete,
    apis.INIT_PRODUCER_ID: transactions.init_producer_id,
    apis.ADD_PARTITIONS_TO_TXN: transactions.add_partitions_to_txn,
    apis.ADD_OFFSETS_TO_TXN: transactions.add_offsets_to_txn,
    apis.END_TXN: transactions.end_txn,
    apis.TXN_OFFSET_COMMIT: transactions.txn_offset_commit,
    apis.SASL_HANDSHAKE: access.sasl_handshake,
    apis.SASL_AUTHENTICATE: access.sasl_authenticate,
    apis.DESCRIBE_ACLS: access.describe_acls,
    apis.CREATE_ACLS: access.create_acls,
    apis.DELETE_ACLS: access.delete_acls,
}

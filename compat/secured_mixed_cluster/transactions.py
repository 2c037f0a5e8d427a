"""Transactions in a mixed cluster with SASL_SSL, in which brokers have the rights of brokers and no others.

Markers and the verification of transactions between brokers of either kind need CLUSTER_ACTION. So the brokers' user
is not a super user here: its entries, and those of the producers' user, are in ZooKeeper before the brokers start.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from compat.mixed_cluster import transactions
from compat.mixed_cluster.cluster import MixedCluster
from compat.mixed_cluster.transactions import PROTOCOLS, TransactionChecks
from compat.secured_mixed_cluster.check import SECURITY, SETTINGS, USER

from klamm.acl_changes import PERSISTENT_PATHS, path_of
from klamm.local.security_choice import ADMIN, BROKER
from klamm.security.acl import stored
from klamm.security.acl.bindings import (
    CLUSTER_NAME,
    WILDCARD,
    AclEntry,
    AclOperation,
    Permission,
    ResourcePattern,
    ResourceType,
)
from klamm.zk.client.batches import levels_of
from klamm.zk.model.ops import Create

PROTOCOL: Final = "3.9"
RIGHTS: Final[Mapping[ResourcePattern, Mapping[str, tuple[AclOperation, ...]]]] = {
    ResourcePattern(ResourceType.CLUSTER, CLUSTER_NAME): {BROKER: (AclOperation.CLUSTER_ACTION, AclOperation.CREATE)},
    ResourcePattern(ResourceType.TOPIC, WILDCARD): {USER: (AclOperation.READ, AclOperation.WRITE)},
    ResourcePattern(ResourceType.GROUP, WILDCARD): {USER: (AclOperation.READ,)},
    ResourcePattern(ResourceType.TRANSACTIONAL_ID, WILDCARD): {USER: (AclOperation.WRITE,)},
}
"""Brokers create the internal topics."""


def write_entries(cluster: MixedCluster) -> None:
    written = [Create(path) for path in levels_of(PERSISTENT_PATHS)]
    for resource, users in RIGHTS.items():
        entries = [
            AclEntry(f"User:{user}", WILDCARD, operation, Permission.ALLOW)
            for user, operations in users.items()
            for operation in operations
        ]
        written.append(Create(path_of(resource), stored.encode_acl(entries)))
    with cluster.zk_session() as session:
        session.write(written)


def run() -> None:
    configs = {**transactions.SETTINGS, **SETTINGS, "super.users": f"User:{ADMIN}"}
    cluster = MixedCluster(PROTOCOLS[PROTOCOL], PROTOCOL, configs, SECURITY)
    cluster.security.add_user(USER)
    with cluster:
        write_entries(cluster)
        cluster.start(*PROTOCOLS[PROTOCOL])
        TransactionChecks(cluster, "secured", USER).run()


if __name__ == "__main__":
    run()

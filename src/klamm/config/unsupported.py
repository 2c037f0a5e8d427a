"""Keys of Kafka that klamm refuses, because accepting them would promise what klamm does not do."""

from __future__ import annotations

from typing import Final

_BY_PREFIX: Final = {
    "ssl.": "TLS",
    "sasl.": "SASL",
    "zookeeper.ssl.": "TLS to ZooKeeper",
    "zookeeper.clientCnxnSocket": "TLS to ZooKeeper",
    "zookeeper.metadata.migration.": "the migration to KRaft",
    "security.providers": "Java security providers",
    "principal.builder.": "principal builders",
    "authorizer.": "authorizers",
    "super.users": "authorizers",
    "allow.everyone.if.no.acl.found": "authorizers",
    "delegation.token.": "delegation tokens",
    "password.encoder.": "encoded passwords",
    "connections.max.reauth.ms": "SASL",
    "process.roles": "KRaft",
    "node.id": "KRaft (use broker.id)",
    "controller.quorum.": "KRaft",
    "controller.listener.names": "KRaft",
    "controller.performance.": "KRaft",
    "metadata.log.": "KRaft",
    "metadata.max.": "KRaft",
    "broker.heartbeat.": "KRaft",
    "broker.session.timeout.ms": "KRaft",
    "initial.broker.registration.": "KRaft",
    "early.start.listeners": "early start of listeners",
    "sasl.mechanism.": "SASL",
    "remote.": "tiered storage",
    "log.local.retention.": "tiered storage",
    "group.consumer.": "the consumer group protocol of KIP-848",
    "group.share.": "share groups",
    "share.": "share groups",
    "client.quota.callback.": "quota callbacks",
    "create.topic.policy.": "Java policies",
    "alter.config.policy.": "Java policies",
    "alter.log.dirs.replication.quota.": "the window of the limit on moves between directories",
    "kafka.metrics.": "Java metric reporters",
    "auto.include.jmx.reporter": "JMX",
    "telemetry.": "client telemetry",
    "unstable.": "unstable features",
}


def unsupported(name: str) -> str | None:
    """Return the feature of Kafka that the key belongs to, if klamm does not have it yet."""
    return next((what for prefix, what in _BY_PREFIX.items() if name.startswith(prefix)), None)

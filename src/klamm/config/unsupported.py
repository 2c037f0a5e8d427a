"""Keys of Kafka that klamm rejects, because it does not have their feature."""

from __future__ import annotations

from typing import Final

_BY_PREFIX: Final = {
    "ssl.": "this setting of Java's TLS",
    "sasl.kerberos.": "Kerberos",
    "sasl.server.callback.": "Java callback handlers",
    "sasl.client.callback.": "Java callback handlers",
    "sasl.login.": "Java logins",
    "sasl.": "this setting of SASL",
    "zookeeper.metadata.migration.": "the migration to KRaft",
    "security.providers": "Java security providers",
    "principal.builder.": "principal builders",
    "delegation.token.": "delegation tokens",
    "password.encoder.": "encoded passwords",
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

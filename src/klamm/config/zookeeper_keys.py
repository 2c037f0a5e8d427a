"""Broker keys of the connection with ZooKeeper: the ensemble, TLS, authentication, and the embedded server."""

from __future__ import annotations

from klamm.config.definition import (
    Importance,
    Support,
    boolean,
    int32,
    optional_int32,
    optional_password,
    optional_string,
    string,
    strings,
)
from klamm.config.values import at_least, between, one_of

HIGH = Importance.HIGH
_NETTY = "org.apache.zookeeper.ClientCnxnSocketNetty"


def _is_off(value: object) -> str | None:
    return "false: klamm does not check revocation lists of ZooKeeper's certificates" if value else None


class ZooKeeperKeys:
    zookeeper_connect = optional_string(
        "zookeeper.connect",
        None,
        "The ZooKeeper servers as host:port,host:port/chroot; without it the embedded server is started.",
        importance=HIGH,
    )
    zookeeper_session_timeout_ms = int32(
        "zookeeper.session.timeout.ms",
        18000,
        "A broker whose session has been silent for this long counts as dead.",
        importance=HIGH,
        check=at_least(1),
    )
    zookeeper_connection_timeout_ms = optional_int32(
        "zookeeper.connection.timeout.ms",
        None,
        "How long a starting broker tries to reach ZooKeeper; without it the session timeout applies.",
        importance=HIGH,
    )
    zookeeper_max_in_flight_requests = int32(
        "zookeeper.max.in.flight.requests",
        10,
        "Maximum number of unanswered requests to ZooKeeper.",
        importance=HIGH,
        check=at_least(1),
        support=Support.NO_EFFECT,
    )
    zookeeper_set_acl = boolean(
        "zookeeper.set.acl",
        False,
        "Whether new znodes are protected by access control lists: only their creator may change them, and users' and "
        "brokers' settings are readable by their creator only. A start also closes older znodes with such settings. "
        "The embedded server applies this to all of its znodes. Requires an identity: a SASL login, a digest or a TLS "
        "certificate.",
        importance=HIGH,
    )
    klamm_zookeeper_digest = optional_password(
        "klamm.zookeeper.digest",
        None,
        "The user:password for ZooKeeper's scheme digest. It is also the shared secret of the embedded server.",
    )
    klamm_zookeeper_sasl_jaas_config = optional_password(
        "klamm.zookeeper.sasl.jaas.config",
        None,
        "The login for SASL DIGEST-MD5 at ZooKeeper, in the form of Kafka's JAAS files: "
        '`org.apache.zookeeper.server.auth.DigestLoginModule required username="..." password="...";`.',
    )
    klamm_zookeeper_embedded_dir = optional_string(
        "klamm.zookeeper.embedded.dir",
        None,
        "Where the embedded ZooKeeper server keeps its data; without it, the first log directory with `-zookeeper` "
        "after its name.",
    )
    klamm_zookeeper_embedded_host = string(
        "klamm.zookeeper.embedded.host",
        "127.0.0.1",
        "The address of the embedded ZooKeeper server. An address other than loopback requires klamm.zookeeper.digest "
        "and zookeeper.set.acl; use zookeeper.ssl.client.enable too, because the digest is sent in clear text without "
        "it.",
    )
    klamm_zookeeper_embedded_port = int32(
        "klamm.zookeeper.embedded.port",
        0,
        "The port of the embedded ZooKeeper server; 0 takes a free port.",
        check=between(0, 65535),
    )


class ZooKeeperTlsKeys:
    zookeeper_ssl_client_enable = boolean(
        "zookeeper.ssl.client.enable",
        False,
        "Whether the connection with ZooKeeper uses TLS. The embedded server then uses it too, with the key and the "
        "certificate of the keystore.",
    )
    zookeeper_clientCnxnSocket = optional_string(
        "zookeeper.clientCnxnSocket",
        None,
        f"Kafka requires {_NETTY} here for TLS.",
        check=one_of(_NETTY, "org.apache.zookeeper.ClientCnxnSocketNIO"),
        support=Support.NO_EFFECT,
    )
    zookeeper_ssl_keystore_location = optional_string(
        "zookeeper.ssl.keystore.location", None, "The key and certificate with which the broker proves itself."
    )
    zookeeper_ssl_keystore_password = optional_password(
        "zookeeper.ssl.keystore.password", None, "The password of the keystore."
    )
    zookeeper_ssl_keystore_type = optional_string(
        "zookeeper.ssl.keystore.type", None, "PEM or PKCS12; if not set, the file extension decides."
    )
    zookeeper_ssl_truststore_location = optional_string(
        "zookeeper.ssl.truststore.location", None, "The certificates of authorities that the broker trusts."
    )
    zookeeper_ssl_truststore_password = optional_password(
        "zookeeper.ssl.truststore.password", None, "The password of the truststore."
    )
    zookeeper_ssl_truststore_type = optional_string(
        "zookeeper.ssl.truststore.type", None, "PEM or PKCS12; if not set, the file extension decides."
    )
    zookeeper_ssl_protocol = string(
        "zookeeper.ssl.protocol",
        "TLSv1.2",
        "The version of TLS if zookeeper.ssl.enabled.protocols is not set; later versions are allowed too.",
        check=one_of("TLSv1.2", "TLSv1.3", "TLS"),
    )
    zookeeper_ssl_enabled_protocols = strings(
        "zookeeper.ssl.enabled.protocols",
        (),
        "The versions of TLS that are allowed.",
        check=one_of("TLSv1.2", "TLSv1.3"),
    )
    zookeeper_ssl_cipher_suites = strings(
        "zookeeper.ssl.cipher.suites", (), "The cipher suites of TLS 1.2 that are allowed; without it, OpenSSL's."
    )
    zookeeper_ssl_endpoint_identification_algorithm = string(
        "zookeeper.ssl.endpoint.identification.algorithm",
        "HTTPS",
        "HTTPS checks the server's name against its certificate; an empty value does not.",
        check=lambda value: None if str(value).upper() in ("HTTPS", "") else "HTTPS, or an empty value",
    )
    zookeeper_ssl_crl_enable = boolean(
        "zookeeper.ssl.crl.enable",
        False,
        "Whether revocation lists are checked.",
        check=_is_off,
        support=Support.ONLY_DEFAULT,
    )
    zookeeper_ssl_ocsp_enable = boolean(
        "zookeeper.ssl.ocsp.enable",
        False,
        "Whether the status of certificates is queried (OCSP).",
        check=_is_off,
        support=Support.ONLY_DEFAULT,
    )

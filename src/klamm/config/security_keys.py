"""Broker keys of TLS, SASL and of the proof that brokers give each other.

Keys of `ssl.` and `sasl.` can be set for one listener with the prefix `listener.name.<name>.`, and those of SASL also
for one mechanism with `listener.name.<name>.<mechanism>.` (`listener_settings`).
"""

from __future__ import annotations

from klamm.config.definition import (
    Importance,
    Support,
    UpdateMode,
    boolean,
    int32,
    int64,
    optional_password,
    optional_string,
    string,
    strings,
)
from klamm.config.values import at_least, between, one_of

HIGH, LOW = Importance.HIGH, Importance.LOW
PER_BROKER = UpdateMode.PER_BROKER
NO_EFFECT = Support.NO_EFFECT


class TlsKeys:
    ssl_keystore_location = optional_string(
        "ssl.keystore.location",
        None,
        "The file with the broker's private key and certificate chain. Setting it again, even to the same path, makes "
        "a running broker read it again.",
        importance=HIGH,
        update=PER_BROKER,
    )
    ssl_keystore_type = string(
        "ssl.keystore.type",
        "JKS",
        "PEM or PKCS12. Both are recognised under Kafka's default, JKS, which klamm does not read.",
        check=one_of("JKS", "PEM", "PKCS12"),
        update=PER_BROKER,
    )
    ssl_keystore_password = optional_password("ssl.keystore.password", None, "The password of a PKCS12 keystore.")
    ssl_key_password = optional_password("ssl.key.password", None, "The password of the private key in a PEM keystore.")
    ssl_keystore_key = optional_password("ssl.keystore.key", None, "The private key as PEM, instead of a file.")
    ssl_keystore_certificate_chain = optional_string(
        "ssl.keystore.certificate.chain", None, "The certificate chain as PEM, with `ssl.keystore.key`."
    )
    ssl_truststore_location = optional_string(
        "ssl.truststore.location",
        None,
        "The file with the certificates that sign clients, and the other brokers.",
        importance=HIGH,
        update=PER_BROKER,
    )
    ssl_truststore_type = string(
        "ssl.truststore.type",
        "JKS",
        "PEM or PKCS12, like `ssl.keystore.type`.",
        check=one_of("JKS", "PEM", "PKCS12"),
        update=PER_BROKER,
    )
    ssl_truststore_password = optional_password("ssl.truststore.password", None, "The password of a PKCS12 truststore.")
    ssl_truststore_certificates = optional_string(
        "ssl.truststore.certificates", None, "The trusted certificates as PEM, instead of a file."
    )
    ssl_client_auth = string(
        "ssl.client.auth",
        "none",
        "Whether clients must have a certificate: `required`, `requested` or `none`.",
        check=one_of("required", "requested", "none"),
        update=PER_BROKER,
    )
    ssl_enabled_protocols = strings(
        "ssl.enabled.protocols",
        ("TLSv1.2", "TLSv1.3"),
        "The versions of TLS. Older ones are not available.",
        check=one_of("TLSv1.2", "TLSv1.3"),
        update=PER_BROKER,
    )
    ssl_protocol = string(
        "ssl.protocol", "TLSv1.3", "Java's name of a context; `ssl.enabled.protocols` decides.", support=NO_EFFECT
    )
    ssl_cipher_suites = strings(
        "ssl.cipher.suites",
        (),
        "The cipher suites, by Java's or OpenSSL's names; empty means OpenSSL's default. One suite of TLS 1.3 enables "
        "all of them.",
        update=PER_BROKER,
    )
    ssl_principal_mapping_rules = string(
        "ssl.principal.mapping.rules",
        "DEFAULT",
        "Rules that turn the name in a client's certificate into a user: RULE:pattern/replacement/[LU], DEFAULT.",
    )
    ssl_endpoint_identification_algorithm = string(
        "ssl.endpoint.identification.algorithm",
        "https",
        "Whether this broker checks the host name in other brokers' certificates: `https`, or empty for no check.",
        check=one_of("https", ""),
        importance=LOW,
    )
    ssl_allow_dn_changes = boolean(
        "ssl.allow.dn.changes", False, "Whether a new certificate may have another subject.", importance=LOW
    )
    ssl_allow_san_changes = boolean(
        "ssl.allow.san.changes",
        False,
        "Whether a new certificate may lack alternative names of the old one.",
        importance=LOW,
    )


class SaslKeys:
    sasl_enabled_mechanisms = strings(
        "sasl.enabled.mechanisms",
        ("GSSAPI",),
        "The mechanisms of SASL listeners: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER. Kafka's default, GSSAPI, "
        "is not available.",
    )
    sasl_mechanism_inter_broker_protocol = string(
        "sasl.mechanism.inter.broker.protocol",
        "GSSAPI",
        "The mechanism by which this broker authenticates with other brokers, if their listener needs SASL.",
    )
    sasl_jaas_config = optional_password(
        "sasl.jaas.config",
        None,
        'The users of PLAIN (user_alice="..."), and this broker\'s own username and password. Usually with the prefix '
        "of a listener and mechanism.",
    )
    sasl_server_max_receive_size = int32(
        "sasl.server.max.receive.size",
        524288,
        "Largest frame of a connection that has not authenticated.",
        check=at_least(1),
    )
    connections_max_reauth_ms = int64(
        "connections.max.reauth.ms",
        0,
        "How long a SASL session lasts before the client must authenticate again; 0 means no limit.",
        check=at_least(0),
    )
    connection_failed_authentication_delay_ms = int32(
        "connection.failed.authentication.delay.ms",
        100,
        "How long the answer to a failed authentication is delayed.",
        check=at_least(0),
        importance=LOW,
    )
    sasl_oauthbearer_jwks_endpoint_url = optional_string(
        "sasl.oauthbearer.jwks.endpoint.url",
        None,
        "Where the keys that sign OAUTHBEARER tokens are: file:PATH or https://... Its query is not shown.",
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms = int64(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        3_600_000,
        "How often these keys are read again.",
        check=at_least(1),
        importance=LOW,
    )
    sasl_oauthbearer_expected_audience = strings(
        "sasl.oauthbearer.expected.audience", (), "Audiences of which a token must have one.", importance=LOW
    )
    sasl_oauthbearer_expected_issuer = optional_string(
        "sasl.oauthbearer.expected.issuer", None, "The issuer that a token must have.", importance=LOW
    )
    sasl_oauthbearer_clock_skew_seconds = int32(
        "sasl.oauthbearer.clock.skew.seconds",
        30,
        "How far the clocks of broker and issuer may differ.",
        check=between(0, 3600),
        importance=LOW,
    )
    sasl_oauthbearer_sub_claim_name = string(
        "sasl.oauthbearer.sub.claim.name", "sub", "The claim of a token that names the user.", importance=LOW
    )
    sasl_oauthbearer_token_endpoint_url = optional_string(
        "sasl.oauthbearer.token.endpoint.url",
        None,
        "Where this broker gets tokens for other brokers: file:PATH or https://... Its query is not shown.",
    )


class KlammSecurityKeys:
    klamm_authentication_timeout_ms = int32(
        "klamm.authentication.timeout.ms",
        30_000,
        "How long a connection may take for its TLS handshake and its authentication.",
        check=at_least(1),
    )
    klamm_sasl_oauthbearer_unsecured_tokens = boolean(
        "klamm.sasl.oauthbearer.unsecured.tokens",
        False,
        "Whether unsigned OAUTHBEARER tokens are accepted. Everybody can make them: for tests only.",
    )
    klamm_admit_unproven_peers = boolean(
        "klamm.admit.unproven.peers",
        False,
        "Whether brokers need no proof that they belong to the cluster. Kafka's brokers in a mixed cluster have none. "
        "Anybody who reaches the listener can then send the requests of brokers, unless super.users or entries for the "
        "cluster decide.",
    )

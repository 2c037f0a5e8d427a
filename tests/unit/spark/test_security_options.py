"""Sources and sinks take Kafka's options of security, and show no secrets."""

from __future__ import annotations

import pickle

import pytest

from klamm.model import SecurityProtocol
from klamm.spark.pipeline.options import prefixed
from klamm.spark.sink import write_options
from klamm.spark.source.client_options import client_config
from klamm.spark.source.read_options import OptionError, parse_read_options

JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="s3cret";'
SECURITY = {
    "kafka.security.protocol": "SASL_PLAINTEXT",
    "kafka.sasl.mechanism": "SCRAM-SHA-512",
    "kafka.sasl.jaas.config": JAAS,
}
READ = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "t", **SECURITY}
WRITE = {"kafka.bootstrap.servers": "localhost:9092", "topic": "t", **SECURITY}


def test_a_source_connects_as_a_user() -> None:
    options = parse_read_options(READ, streaming=False)
    security = client_config(options.bootstrap_servers, options.client).security
    assert security.protocol is SecurityProtocol.SASL_PLAINTEXT
    assert security.sasl is not None and security.sasl.username == "alice"
    assert "s3cret" not in repr(options) and "s3cret" not in repr(security)
    assert pickle.loads(pickle.dumps(options)).client["sasl.jaas.config"] == JAAS


def test_a_sink_connects_as_a_user() -> None:
    for more in ({}, {"guarantee": "exactly_once"}):
        options = write_options.parse({**WRITE, **more})
        assert options.all_settings["sasl.password"] == "s3cret"
        assert options.all_settings["security.protocol"] == "SASL_PLAINTEXT"
        assert "sasl.jaas.config" not in options.settings
        assert client_config(options.servers, options.client).security.sasl is not None
        assert "s3cret" not in repr(options) and "s3cret" not in repr(options.client)


def test_mistakes_are_named_without_secrets() -> None:
    options = parse_read_options({**READ, "kafka.sasl.mechanism": "NONSENSE"}, streaming=False)
    with pytest.raises(OptionError, match="NONSENSE") as refused:
        client_config(options.bootstrap_servers, options.client)
    assert "s3cret" not in str(refused.value)
    with pytest.raises(OptionError, match="no Java security providers"):
        parse_read_options({**READ, "kafka.security.providers": "x"}, streaming=False)


def test_a_pipeline_adds_the_prefix() -> None:
    assert prefixed({"sasl.password": "x"}) == {"kafka.sasl.password": "x"}

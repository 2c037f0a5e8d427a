"""`--command-config`: every command that connects to brokers has it, and its secrets reach clients, not the output."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from klamm.cli.app import app
from klamm.cli.client import no_such_topic
from klamm.cli.command_config import CommandConfig, current
from klamm.errors import ConfigError, KlammError
from klamm.model import SecurityProtocol
from klamm.security.certificates.certificate_store import CertificateStore
from klamm.security.client_security import ClientSecurity
from klamm.security.librdkafka import librdkafka_settings
from klamm.security.redaction import HiddenSecrets, is_secret

JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="s3cret=\\"x";'


def commands(command: Any, name: str = "klamm") -> dict[str, Any]:
    found = {name: command}
    for child in getattr(command, "commands", {}).values():
        found |= commands(child, f"{name} {child.name}")
    return found


def test_every_command_that_connects_has_the_option() -> None:
    found = commands(typer.main.get_command(app))
    options = {name: {param.name for param in command.params} for name, command in found.items()}
    connecting = {name for name, names in options.items() if "bootstrap_server" in names}
    assert len(connecting) > 20
    assert {name for name, names in options.items() if "command_config" in names} == connecting


def test_every_command_accepts_both_names_of_the_brokers() -> None:
    """Kafka's tools have `--bootstrap-server`; its clients' setting, and some tools, have the plural."""
    for name, command in commands(typer.main.get_command(app)).items():
        for param in command.params:
            if param.name == "bootstrap_server":
                assert list(param.opts) == ["--bootstrap-server", "--bootstrap-servers", "-b"], name
    run = CliRunner().invoke(app, ["quota", "list", "--bootstrap-servers", "localhost:1"])
    assert "No broker answers at localhost:1." in str(run.exception)


def test_kafkas_keys_become_librdkafkas(tmp_path: Path) -> None:
    store = CertificateStore.create(tmp_path / "certificates", 1)
    store.issue_client("alice", 1)
    path = tmp_path / "client.properties"
    path.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n"
        f"ssl.truststore.location={store.truststore_path}\nssl.truststore.type=PKCS12\n"
        f"ssl.truststore.password={store.password}\nssl.keystore.location={store.directory / 'alice.p12'}\n"
        f"ssl.keystore.password={store.password}\nssl.endpoint.identification.algorithm=\n"
        "sasl.jaas.config=" + JAAS.replace("\\", "\\\\") + "\n"
    )
    path.chmod(0o600)
    config = CommandConfig()
    config.use(path)
    settings = config.librdkafka
    assert settings["sasl.username"] == "alice" and settings["sasl.password"] == 's3cret="x'
    assert settings["ssl.ca.pem"] == store.ca_path.read_text()
    assert settings["ssl.key.pem"].startswith("-----BEGIN PRIVATE KEY-----")
    assert settings["ssl.endpoint.identification.algorithm"] == "none"
    assert config.security.protocol is SecurityProtocol.SASL_SSL
    assert "s3cret" not in repr(config.security)
    from confluent_kafka.admin import AdminClient

    AdminClient({"bootstrap.servers": "localhost:1", "log_level": 0, **settings})  # librdkafka accepts all of it
    config.use(None)
    assert config.librdkafka == {} and config.security == ClientSecurity()


def test_a_token_is_asked_for_when_librdkafka_wants_one() -> None:
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    jaas = f'{module} required unsecuredLoginStringClaim_sub="a";'
    security = ClientSecurity.from_properties(
        {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER", "sasl.jaas.config": jaas}
    )
    token, until_s, principal, extensions = librdkafka_settings(security)["oauth_cb"]("")
    assert token.count(".") == 2 and until_s > 0 and principal == "a" and extensions == {}


def test_mistakes_are_named_without_secrets(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text(f"security.protocol=SASL_SSL\nsasl.mechanism=NONSENSE\nsasl.jaas.config={JAAS}\n")
    config = CommandConfig()
    config.use(path)
    with pytest.raises(ConfigError, match="NONSENSE") as refused:
        _ = config.security
    assert "s3cret" not in str(refused.value)
    config.use(tmp_path / "absent")
    with pytest.raises(KlammError, match="cannot be read"):
        _ = config.security


def test_the_file_of_one_command_does_not_stay(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("security.protocol=NONSENSE\n")
    run = CliRunner().invoke(app, ["quota", "list", "-b", "localhost:1", "--command-config", str(path)])
    assert "NONSENSE" in str(run.exception)
    assert "No broker answers" in str(CliRunner().invoke(app, ["quota", "list", "-b", "localhost:1"]).exception)
    again = CliRunner().invoke(app, ["quota", "list", "-b", "localhost:1"], env={"KLAMM_COMMAND_CONFIG": str(path)})
    assert "NONSENSE" in str(again.exception)
    assert "KLAMM_COMMAND_CONFIG" not in os.environ
    assert not current.properties


def test_the_file_names_the_brokers_unless_the_option_does(tmp_path: Path) -> None:
    """The brokers and the credentials of a file belong together, so the environment does not override them."""
    path = tmp_path / "client.properties"
    path.write_text("bootstrap.servers=localhost:2\n")

    def asked(*options: str, **env: str) -> str:
        command = ["quota", "list", *options]
        return str(CliRunner().invoke(app, command, env={"KLAMM_BOOTSTRAP_SERVERS": None, **env}).exception)

    file = ("--command-config", str(path))
    assert asked(*file).startswith("No broker answers at localhost:2.")
    assert asked(KLAMM_COMMAND_CONFIG=str(path)).startswith("No broker answers at localhost:2.")
    assert asked(*file, KLAMM_BOOTSTRAP_SERVERS="localhost:3").startswith("No broker answers at localhost:2.")
    assert asked(*file, "--bootstrap-server", "localhost:1").startswith("No broker answers at localhost:1.")
    assert asked("-b", "localhost:1", *file).startswith("No broker answers at localhost:1.")
    path.write_text("security.protocol=PLAINTEXT\n")
    assert asked(*file, KLAMM_BOOTSTRAP_SERVERS="localhost:3").startswith("No broker answers at localhost:3.")


def test_a_missing_topic_may_be_a_missing_right(tmp_path: Path) -> None:
    """Kafka hides topics that a user may not describe."""
    assert no_such_topic("a", "b") == "There is no topic a, b."
    (tmp_path / "client.properties").write_text("security.protocol=SASL_PLAINTEXT\n")
    current.use(tmp_path / "client.properties")
    try:
        sentence = no_such_topic("orders")
    finally:
        current.forget()
    assert sentence.startswith("There is no topic orders, or the user lacks Describe on topic orders. ")
    assert "`klamm acl add --allow-principal User:NAME --operation Describe --topic orders`" in sentence


def test_advice_for_a_user_whose_name_means_everybody(tmp_path: Path) -> None:
    """Nobody is advised to grant a right to all users."""
    path = tmp_path / "client.properties"
    for name, principal in (("*", "User:NAME"), ("o'b", "'User:o'\"'\"'b'")):
        lines = ("security.protocol=SASL_PLAINTEXT", "sasl.mechanism=PLAIN", f"sasl.username={name}", "sasl.password=x")
        path.write_text("\n".join(lines))
        path.chmod(0o600)
        current.use(path)
        try:
            assert f"--allow-principal {principal} --operation Describe" in no_such_topic("orders")
        finally:
            current.forget()


def test_a_file_that_others_may_read_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "client.properties"
    path.write_text("sasl.password=s3cret\n")
    path.chmod(0o644)
    config = CommandConfig()
    config.use(path)
    assert config.properties["sasl.password"] == "s3cret"
    assert f"chmod 600 {path}" in capsys.readouterr().err


def test_secrets_have_no_text_form() -> None:
    secret = ("sasl.password", "sasl.jaas.config", "ssl.keystore.key", "ssl.key.pem", "ssl.key.password")
    assert all(map(is_secret, secret))
    assert not any(map(is_secret, ("ssl.keystore.location", "client.id", "sasl.mechanism", "ssl.ca.location")))
    options = HiddenSecrets({"sasl.password": "s3cret", "client.id": "c"})
    assert repr(options) == str(options) == "{'sasl.password': '[hidden]', 'client.id': 'c'}"
    assert options["sasl.password"] == "s3cret"

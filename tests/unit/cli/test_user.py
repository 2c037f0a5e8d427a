"""`klamm user` and `klamm quota`: mechanisms of the brokers, users that are needed, names, and ZooKeeper's refusals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from klamm.cli import login_settings
from klamm.cli import user as user_command
from klamm.cli.app import app
from klamm.cli.login_settings import LoginSettings, of_config
from klamm.config import KafkaConfig
from klamm.errors import KlammError
from klamm.zk.server.main import EmbeddedZooKeeperThread
from klamm.zk.server.server import ServerOptions
from klamm.zk.server.shared_secret import Gate

SASL = "listeners=SASL_PLAINTEXT://localhost:0\nsecurity.inter.broker.protocol=SASL_PLAINTEXT\n"


def run(*arguments: str, stdin: str = "secret\n") -> tuple[int, str]:
    done = CliRunner().invoke(app, arguments, input=stdin)
    if isinstance(done.exception, KlammError):
        return 1, f"{done.output}{done.exception}"
    assert done.exception is None or isinstance(done.exception, SystemExit), repr(done.exception)
    return done.exit_code, done.output


class Brokers:
    """Brokers with some settings, and the passwords that they received."""

    def __init__(self) -> None:
        self.settings: LoginSettings | None = None
        self.added: list[tuple[str, list[str]]] = []
        self.removed: list[tuple[str, list[str]]] = []
        self.users = [("alice", "SCRAM-SHA-512", 4096), ("admin", "SCRAM-SHA-512", 4096)]

    def enable(self, *mechanisms: str, super_users: str = "", between: str | None = None) -> None:
        self.settings = LoginSettings(mechanisms, frozenset(super_users.split()), between)


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    made = Brokers()
    monkeypatch.setattr(login_settings, "of_brokers", lambda _: made.settings)
    monkeypatch.setattr(user_command, "_upsert", lambda _, name, __, chosen, ___: made.added.append((name, chosen)))
    monkeypatch.setattr(user_command, "_delete", lambda _, name, chosen: made.removed.append((name, chosen)))
    monkeypatch.setattr(user_command, "_from_brokers", lambda _: made.users)
    return made


def test_a_user_gets_the_mechanisms_of_the_brokers(brokers: Brokers) -> None:
    brokers.enable("SCRAM-SHA-256", "PLAIN")
    assert run("user", "add", "alice") == (0, "User alice can log in with SCRAM-SHA-256.\n")
    brokers.enable("SCRAM-SHA-512", "SCRAM-SHA-256")
    assert "can log in with SCRAM-SHA-256 and SCRAM-SHA-512." in run("user", "add", "alice")[1]
    assert [chosen for _, chosen in brokers.added] == [["SCRAM-SHA-256"], ["SCRAM-SHA-256", "SCRAM-SHA-512"]]


def test_brokers_with_plain_only(brokers: Brokers) -> None:
    brokers.enable("PLAIN")
    code, output = run("user", "add", "alice")
    assert code == 1 and "enable PLAIN only" in output and "listener.name.LISTENER.plain.sasl.jaas.config" in output
    assert not brokers.added
    code, output = run("user", "add", "alice", "-m", "scram-sha-512")
    assert code == 0 and "the brokers do not enable SCRAM-SHA-512: sasl.enabled.mechanisms is PLAIN." in output
    code, output = run("user", "add", "alice", "-m", "plain")
    assert code == 1 and "--mechanism PLAIN: users of SASL PLAIN are in sasl.jaas.config of every broker" in output
    assert brokers.added == [("alice", ["SCRAM-SHA-512"])]


def test_brokers_whose_mechanisms_are_unknown_or_without_sasl(brokers: Brokers) -> None:
    code, output = run("user", "add", "alice")
    assert code == 0 and "the settings of the brokers cannot be read: compare sasl.enabled.mechanisms" in output
    brokers.enable()
    code, output = run("user", "add", "alice")
    assert code == 0 and "no listener of the brokers uses SASL" in output
    assert brokers.added == [("alice", ["SCRAM-SHA-512"])] * 2


def test_needed_users_are_removed_only_after_a_question(brokers: Brokers) -> None:
    brokers.enable("SCRAM-SHA-512", super_users="admin", between="SCRAM-SHA-512")
    brokers.users.append(("broker", "SCRAM-SHA-512", 4096))
    for name, reason in (("admin", "admin is a super user"), ("broker", "the brokers log in to each other as broker")):
        code, output = run("user", "remove", name)
        assert code == 1 and reason in output and "Nothing was removed. Pass --yes to skip the question." in output
    assert not brokers.removed
    assert run("user", "remove", "alice")[0] == run("user", "remove", "admin", "--yes")[0] == 0
    assert [name for name, _ in brokers.removed] == ["alice", "admin"]


def test_brokers_whose_settings_are_unknown_may_need_the_users_of_klamm_up(brokers: Brokers) -> None:
    brokers.settings = None
    brokers.users.append(("broker", "SCRAM-SHA-512", 4096))
    for name, harm in (("admin", "administrators can no longer log in"), ("broker", "restarts cannot join")):
        code, output = run("user", "remove", name)
        assert code == 1 and "the settings of the brokers cannot be read" in output and harm in output
        assert "Nothing was removed. Pass --yes to skip the question." in output
    assert not brokers.removed
    assert run("user", "remove", "alice")[0] == run("user", "remove", "broker", "--yes")[0] == 0
    assert [name for name, _ in brokers.removed] == ["alice", "broker"]


def test_the_own_user_is_removed_only_after_a_question(brokers: Brokers, tmp_path: Path) -> None:
    own = tmp_path / "client.properties"
    own.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=alice\nsasl.password=secret\n"
    )
    own.chmod(0o600)
    code, output = run("user", "remove", "alice", "--command-config", str(own))
    assert code == 1 and "this command logs in as alice" in output
    assert not brokers.removed


def test_names_of_users_have_no_type(brokers: Brokers) -> None:
    sentence = "'User:carol' is a principal: pass the name of the user, carol."
    for command in (
        ("user", "add", "User:carol"),
        ("user", "remove", "User:carol"),
        ("quota", "set", "producer_byte_rate=1", "--user", "User:carol"),
        ("quota", "describe", "--user", "User:carol"),
    ):
        assert run(*command) == (1, sentence)
    assert not brokers.added
    brokers.users.append(("User:carol", "SCRAM-SHA-512", 4096))  # made by an earlier release or another tool
    assert run("user", "remove", "User:carol")[0] == 0


def test_the_settings_of_a_configuration() -> None:
    jaas = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="b" password="p";'
    found = of_config(
        KafkaConfig(
            {
                "listeners": "PLAINTEXT://localhost:1,SASL_PLAINTEXT://localhost:2,OWN://localhost:3",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,OWN:SASL_SSL",
                "inter.broker.listener.name": "OWN",
                "sasl.enabled.mechanisms": "PLAIN",
                "listener.name.own.sasl.enabled.mechanisms": "scram-sha-512,PLAIN",
                "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
                "listener.name.own.scram-sha-512.sasl.jaas.config": jaas,
                "super.users": "User:admin;User:b",
            }
        )
    )
    assert found == LoginSettings(("PLAIN", "SCRAM-SHA-512"), frozenset({"admin", "b"}), "SCRAM-SHA-512", "b")
    assert of_config(KafkaConfig({})) == LoginSettings((), frozenset(), None)


@pytest.fixture
def gated(tmp_path: Path) -> Iterator[EmbeddedZooKeeperThread]:
    options = ServerOptions(gate=Gate("klamm:right"))
    server = EmbeddedZooKeeperThread(tmp_path / "zookeeper", fsync=False, options=options).start()
    yield server
    server.stop()


def test_zookeeper_that_refuses_or_is_gone(
    gated: EmbeddedZooKeeperThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "broker.properties"
    head = f"{SASL}sasl.enabled.mechanisms=SCRAM-SHA-256\nzookeeper.connect={gated.address}\n"
    config.write_text(f"{head}klamm.zookeeper.digest=klamm:right\n")
    command = ("user", "add", "alice", "--broker-config", str(config))
    assert run(*command) == (0, "User alice can log in with SCRAM-SHA-256.\n")
    for digest in ("klamm.zookeeper.digest=klamm:wrong\n", ""):
        config.write_text(head + digest)
        output, timeout_s = "no ZooKeeper answers", 0.5
        while "no ZooKeeper answers" in output:
            timeout_s *= 2
            monkeypatch.setattr(user_command, "_ZOOKEEPER_S", timeout_s)
            code, output = run("user", "list", "--broker-config", str(config))
        assert code == 1 and gated.address in output and "klamm.zookeeper.digest" in output
    gated.stop()
    monkeypatch.setattr(user_command, "_ZOOKEEPER_S", 0.2)
    code, output = run(*command)
    assert (code, output) == (1, f"{config}: no ZooKeeper answers at {gated.address}.")

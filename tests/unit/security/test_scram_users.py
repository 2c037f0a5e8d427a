"""SCRAM users of a listener: changes of credentials count at the next login, and nobody learns the names of users."""

from __future__ import annotations

import re
from base64 import b64decode

import pytest

from klamm.config import KafkaConfig
from klamm.config.user_credentials import UserCredentials
from klamm.errors import ErrorCode
from klamm.security.sasl.mechanisms import SCRAM_SHA_256, SCRAM_SHA_512
from klamm.security.sasl.new_credential import scram_text
from klamm.security.sasl.scram_credential import ScramCredential, decoy_credential
from klamm.security.sasl.server_authenticator import SaslSettings
from klamm.security.secret import Secret
from klamm.server.sasl_mechanisms import SaslMechanisms
from tests.unit.security.sasl_peer import Peer, credential


def settings_of(users: UserCredentials, secret: str = "of the cluster", mechanism: str = SCRAM_SHA_256) -> SaslSettings:
    """The settings of a listener of one broker."""
    config = KafkaConfig({"zookeeper.connect": "localhost:1", "sasl.enabled.mechanisms": mechanism})
    return SaslMechanisms(users, Secret(secret)).settings_of(config.listener_settings("SASL_PLAINTEXT"), config)


def test_a_changed_credential_counts_at_the_next_login() -> None:
    users = UserCredentials()
    settings = settings_of(users)

    def log_in(password: str) -> int:
        code: int = Peer(sasl=settings).log_in(SCRAM_SHA_256, "alice", password).error_code
        return code

    assert log_in("old") == ErrorCode.SASL_AUTHENTICATION_FAILED
    for password in ("old", "new"):
        users.set_user("alice", {SCRAM_SHA_256: credential(SCRAM_SHA_256, password).to_text()})
        assert [log_in("old"), log_in(password)] == [0 if password == "old" else 58, 0]
    users.set_user("alice", {SCRAM_SHA_256: "salt=broken"})
    assert log_in("new") == ErrorCode.SASL_AUTHENTICATION_FAILED
    users.set_user("alice", {})
    assert log_in("new") == ErrorCode.SASL_AUTHENTICATION_FAILED


def challenge(settings: SaslSettings, name: str, mechanism: str) -> tuple[int, bytes, int]:
    """The length of the nonce, the salt and the iterations that a client is given for a name."""
    peer = Peer(sasl=settings)
    peer.handshake(mechanism)
    response = peer.authenticate(f"n,,n={name},r=nonce".encode())
    assert response.error_code == 0, response
    found = re.fullmatch(r"r=([^,]+),s=([^,]+),i=(\d+)", bytes(response.auth_bytes).decode())
    assert found is not None
    return len(found[1]), b64decode(found[2]), int(found[3])


@pytest.mark.parametrize("mechanism", [SCRAM_SHA_256, SCRAM_SHA_512])
def test_the_first_answer_hides_which_names_exist(mechanism: str) -> None:
    users = UserCredentials()
    users.set_user("alice", {mechanism: scram_text(mechanism, "secret")})
    settings = settings_of(users, mechanism=mechanism)
    known, unknown = challenge(settings, "alice", mechanism), challenge(settings, "mallory", mechanism)
    assert (known[0], len(known[1]), known[2]) == (unknown[0], len(unknown[1]), unknown[2])
    assert unknown == challenge(settings, "mallory", mechanism), "a salt that changes would give it away"
    assert unknown == challenge(settings_of(users, mechanism=mechanism), "mallory", mechanism), "on another broker too"
    assert unknown[1] != challenge(settings, "mallor", mechanism)[1]
    assert unknown[1] != challenge(settings_of(users, "of another", mechanism), "mallory", mechanism)[1]


@pytest.mark.parametrize("mechanism", [SCRAM_SHA_256, SCRAM_SHA_512])
def test_a_name_that_no_user_has_is_refused_like_a_wrong_password(mechanism: str) -> None:
    users = UserCredentials()
    users.set_user("alice", {mechanism: scram_text(mechanism, "secret")})
    problems, answers = [], []
    for name in ("alice", "mallory"):
        peer = Peer(sasl=settings_of(users, mechanism=mechanism))
        answers.append(peer.log_in(mechanism, name, "guessed"))
        problems.append(peer.gate.is_closed and peer.security.counts.failed == 1)
    assert problems == [True, True] and answers[0] == answers[1]
    assert answers[0].error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_a_decoy_is_made_for_every_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the time of the first answer reveals which names exist."""
    names: list[str] = []

    def noted(key: str, mechanism: str, username: str) -> ScramCredential:
        names.append(username)
        return decoy_credential(key, mechanism, username)

    monkeypatch.setattr("klamm.server.sasl_mechanisms.decoy_credential", noted)
    users = UserCredentials()
    users.set_user("alice", {SCRAM_SHA_256: scram_text(SCRAM_SHA_256, "secret")})
    settings = settings_of(users)
    for name in ("alice", "mallory"):
        challenge(settings, name, SCRAM_SHA_256)
    assert names == ["alice", "mallory"]


def test_no_password_fits_a_decoy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even a proof that fits does not let in a user who does not exist."""
    made = credential(SCRAM_SHA_256, "fits")
    monkeypatch.setattr("klamm.server.sasl_mechanisms.decoy_credential", lambda *_: made)
    peer = Peer(sasl=settings_of(UserCredentials()))
    assert peer.log_in(SCRAM_SHA_256, "mallory", "fits").error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert peer.gate.is_closed

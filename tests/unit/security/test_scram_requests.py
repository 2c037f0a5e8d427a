"""AlterUserScramCredentials and DescribeUserScramCredentials, over a real embedded ZooKeeper."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from klamm.apis import alter_user_scram_credentials as altering
from klamm.apis import describe_user_scram_credentials as describing
from klamm.apis import zookeeper_waits
from klamm.config.client_quotas import QuotaEntity
from klamm.errors import ErrorCode
from klamm.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from klamm.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    UserName,
)
from klamm.quota.quota_store import change_quota
from klamm.security.sasl.scram_credential import parse_credential, salted_password
from tests.support.broker_with_zookeeper import broker_with_zookeeper, embedded_zookeeper
from tests.support.one_broker import OneBroker

SHA_256, SHA_512, UNKNOWN = 1, 2, 3
SALT = b"twelve bytes"
SALTED = salted_password("SCRAM-SHA-256", "secret", SALT, 4096)
NONE = ErrorCode.NONE
UNACCEPTABLE = ErrorCode.UNACCEPTABLE_CREDENTIAL


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with embedded_zookeeper(tmp_path_factory.mktemp("zk")) as address:
        yield address


@pytest.fixture
def one(tmp_path: Path, zookeeper: str) -> Iterator[OneBroker]:
    """A broker with a ZooKeeper tree of its own."""
    with broker_with_zookeeper(tmp_path, zookeeper) as (broker, _):
        yield broker


class SilentZooKeeper:
    """Receives requests and never answers, as after a lost connection."""

    async def read_many(self, wanted: Sequence[str]) -> None:
        await asyncio.get_running_loop().create_future()


def upsertion(name: str, mechanism: int = SHA_256, **fields: Any) -> ScramCredentialUpsertion:
    usual: dict[str, Any] = {"iterations": 4096, "salt": SALT, "salted_password": SALTED}
    return ScramCredentialUpsertion(name=name, mechanism=mechanism, **usual | fields)


def deletion(name: str, mechanism: int = SHA_256) -> ScramCredentialDeletion:
    return ScramCredentialDeletion(name=name, mechanism=mechanism)


def alter(one: OneBroker, *changes: ScramCredentialUpsertion | ScramCredentialDeletion) -> dict[str, int]:
    request = AlterUserScramCredentialsRequest(
        deletions=[each for each in changes if isinstance(each, ScramCredentialDeletion)],
        upsertions=[each for each in changes if isinstance(each, ScramCredentialUpsertion)],
    )
    results = one.ask(altering.API, request, 0).results
    assert all((result.error_message is None) == (result.error_code == NONE) for result in results)
    return {result.user: result.error_code for result in results}


def describe(one: OneBroker, *names: str, everyone: list[UserName] | None = None) -> Any:
    """The iterations by number of the mechanism, or the error, of each user."""
    users = [UserName(name=name) for name in names] or everyone
    response: DescribeUserScramCredentialsResponse = one.ask(
        describing.API, DescribeUserScramCredentialsRequest(users=users), 0
    )
    assert response.error_code == NONE
    return {
        result.user: result.error_code or {info.mechanism: info.iterations for info in result.credential_infos}
        for result in response.results
    }


def stored(one: OneBroker, user: str) -> dict[str, str] | None:
    """The settings of a user in ZooKeeper; None without a znode."""
    (found,) = one.loop.run_until_complete(one.broker.zk.read_many([f"/config/users/{user}"]))
    if found is None:
        return None
    settings: dict[str, str] = json.loads(found[0] or b"")["config"]
    return settings


def test_a_credential_is_stored_where_kafka_keeps_it_and_serves_at_once(one: OneBroker) -> None:
    """The quotas of the user are in the same znode and stay."""
    one.loop.run_until_complete(
        change_quota(one.broker.zk, QuotaEntity(user="alice"), lambda before: before | {"producer_byte_rate": "9.0"})
    )
    assert alter(one, upsertion("alice"), upsertion("alice", SHA_512, iterations=16384)) == {"alice": NONE}
    settings = stored(one, "alice")
    assert settings is not None and settings.keys() == {"producer_byte_rate", "SCRAM-SHA-256", "SCRAM-SHA-512"}
    credential = parse_credential(settings["SCRAM-SHA-256"])
    assert (credential.salt, credential.iterations) == (SALT, 4096)
    assert one.broker.configs.user_credentials.get("SCRAM-SHA-256", "alice") == settings["SCRAM-SHA-256"]
    assert describe(one, "alice") == {"alice": {SHA_256: 4096, SHA_512: 16384}}
    assert alter(one, deletion("alice"), deletion("alice", SHA_512)) == {"alice": NONE}
    assert stored(one, "alice") == {"producer_byte_rate": "9.0"}
    assert one.broker.configs.user_credentials.get("SCRAM-SHA-256", "alice") is None


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"iterations": 4095}, UNACCEPTABLE),
        ({"iterations": 16385}, UNACCEPTABLE),
        ({"iterations": -1}, UNACCEPTABLE),
        ({"salt": b""}, UNACCEPTABLE),
        ({"salt": SALT[1:]}, UNACCEPTABLE),
        ({"salted_password": b""}, UNACCEPTABLE),
        ({"mechanism": UNKNOWN}, ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ({"mechanism": 0}, ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ({"mechanism": -1}, ErrorCode.UNSUPPORTED_SASL_MECHANISM),
    ],
    ids=str,
)
def test_a_credential_that_is_refused(one: OneBroker, fields: dict[str, Any], error: ErrorCode) -> None:
    """It does not affect other users, and nothing of this one is stored."""
    changes = upsertion("alice", SHA_512), upsertion("alice", **fields), upsertion("bob")
    assert alter(one, *changes) == {"alice": error, "bob": NONE}
    assert stored(one, "alice") is None
    assert one.broker.configs.user_credentials.get("SCRAM-SHA-512", "alice") is None
    assert describe(one, "alice", "bob") == {"alice": ErrorCode.RESOURCE_NOT_FOUND, "bob": {SHA_256: 4096}}


def test_the_empty_name_is_refused(one: OneBroker) -> None:
    """Its znode would be that of the default quotas."""
    assert alter(one, upsertion("")) == {"": UNACCEPTABLE}
    assert alter(one, deletion("")) == {"": UNACCEPTABLE}
    assert stored(one, "<default>") is None
    assert describe(one, "") == {"": ErrorCode.RESOURCE_NOT_FOUND}


def test_a_user_may_have_the_name_of_the_default(one: OneBroker) -> None:
    assert alter(one, upsertion("<default>")) == {"<default>": NONE}
    assert stored(one, "<default>") is None
    assert describe(one, everyone=[]) == {"<default>": {SHA_256: 4096}}


def test_a_mechanism_is_named_once_per_user(one: OneBroker) -> None:
    twice = {"alice": ErrorCode.DUPLICATE_RESOURCE}
    assert alter(one, upsertion("alice"), upsertion("alice", iterations=8192)) == twice
    assert alter(one, deletion("alice"), upsertion("alice")) == twice
    assert stored(one, "alice") is None
    assert alter(one, upsertion("alice"), upsertion("alice", SHA_512)) == {"alice": NONE}


def test_the_changes_of_a_user_are_made_together_or_not_at_all(one: OneBroker) -> None:
    assert alter(one, upsertion("alice")) == {"alice": NONE}
    missing = {"alice": ErrorCode.RESOURCE_NOT_FOUND, "bob": NONE}
    assert alter(one, upsertion("alice", iterations=8192), deletion("alice", SHA_512), upsertion("bob")) == missing
    assert describe(one, "alice") == {"alice": {SHA_256: 4096}}
    assert alter(one, deletion("carol")) == {"carol": ErrorCode.RESOURCE_NOT_FOUND}
    assert stored(one, "carol") is None


@pytest.mark.parametrize("everyone", [None, []], ids=["null", "empty"])
def test_everyone_with_a_credential_is_described(one: OneBroker, everyone: list[UserName] | None) -> None:
    one.loop.run_until_complete(
        change_quota(one.broker.zk, QuotaEntity(user="quota"), lambda before: {"producer_byte_rate": "9.0"})
    )
    one.loop.run_until_complete(
        change_quota(one.broker.zk, QuotaEntity("carol", "c"), lambda before: {"SCRAM-SHA-256": "not of a user"})
    )
    alter(one, upsertion("bob"), upsertion("alice", SHA_512))
    assert list(describe(one, everyone=everyone).items()) == [("alice", {SHA_512: 4096}), ("bob", {SHA_256: 4096})]


def test_a_user_that_is_described_twice(one: OneBroker) -> None:
    alter(one, upsertion("alice"), upsertion("bob"))
    found = describe(one, "alice", "bob", "alice")
    assert found == {"alice": ErrorCode.DUPLICATE_RESOURCE, "bob": {SHA_256: 4096}}


def test_a_damaged_credential_does_not_hide_others(one: OneBroker) -> None:
    alter(one, upsertion("alice"), upsertion("alice", SHA_512))
    one.loop.run_until_complete(
        change_quota(one.broker.zk, QuotaEntity(user="alice"), lambda before: before | {"SCRAM-SHA-256": "salt=?"})
    )
    assert describe(one, "alice") == {"alice": {SHA_512: 4096}}


def test_without_zookeeper_the_rest_is_not_tried(one: OneBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper_waits, "CHANGE_WAIT_MS", 1)
    monkeypatch.setattr(describing, "CHANGE_WAIT_MS", 1)
    session = one.broker.zk
    one.give(zk=SilentZooKeeper())
    request = AlterUserScramCredentialsRequest(deletions=[], upsertions=[upsertion("alice"), upsertion("bob")])
    messages = [result.error_message for result in one.ask(altering.API, request, 0).results]
    assert messages == [
        "ZooKeeper does not answer; the change may still take effect.",
        "Not tried: ZooKeeper does not answer.",
    ]
    asked = DescribeUserScramCredentialsRequest(users=[UserName(name="alice")])
    response = one.ask(describing.API, asked, 0)
    assert (response.error_code, list(response.results)) == (ErrorCode.REQUEST_TIMED_OUT, [])
    for task in asyncio.all_tasks(one.loop):
        if task.get_name() == "zookeeper-change":
            task.cancel()
    one.spin()
    one.give(zk=session)

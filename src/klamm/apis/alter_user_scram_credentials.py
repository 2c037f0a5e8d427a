"""AlterUserScramCredentials (51): sets and deletes SCRAM credentials of users (KIP-554).

v0. The client salts and hashes the password itself; the broker never learns it. All changes of a user are made together
or not at all. An unknown mechanism is UNSUPPORTED_SASL_MECHANISM (33); an empty name, iterations outside 4096 to 16384,
and a salt of less than 12 bytes are UNACCEPTABLE_CREDENTIAL (93); a mechanism that is named twice for a user is
DUPLICATE_RESOURCE (92); a deletion of a missing credential is RESOURCE_NOT_FOUND (91). It needs ALTER on the
cluster. Any broker makes the change. If ZooKeeper does not answer within seconds, the answer is REQUEST_TIMED_OUT (7);
the change may still take effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from klamm.apis.api_declaration import Answer, Api, Broker, Plane, RequestContext
from klamm.apis.guards import NOT_AUTHORIZED, needs_cluster
from klamm.apis.scram_mechanisms import MECHANISMS
from klamm.apis.slices import each
from klamm.apis.zookeeper_waits import NOT_TRIED, ApiError, Outcome, change_in_time, refusal
from klamm.config.client_quotas import QuotaEntity
from klamm.errors import ErrorCode
from klamm.protocol.chunked import ChunkedList
from klamm.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialUpsertion,
)
from klamm.quota.quota_store import Properties, change_quota
from klamm.security.acl.bindings import AclOperation
from klamm.security.sasl.scram_credential import MAX_ITERATIONS, MIN_ITERATIONS, MIN_SALT_BYTES, credential_of
from klamm.waiting import Steps, begin, result_of


class _Change(NamedTuple):
    """`upsertion` is None for a deletion."""

    mechanism: int
    upsertion: ScramCredentialUpsertion | None


def handle(
    broker: Broker, ctx: RequestContext, req: AlterUserScramCredentialsRequest
) -> Answer[AlterUserScramCredentialsResponse]:
    return begin(_alter_all(broker, ctx, req))


def _alter_all(
    broker: Broker, ctx: RequestContext, req: AlterUserScramCredentialsRequest
) -> Steps[AlterUserScramCredentialsResponse]:
    changes: dict[str, list[_Change]] = {}
    ctx.hold(changes)
    yield from each(
        req.deletions, lambda deletion: changes.setdefault(deletion.name, []).append(_Change(deletion.mechanism, None))
    )
    yield from each(
        req.upsertions,
        lambda upsertion: changes.setdefault(upsertion.name, []).append(_Change(upsertion.mechanism, upsertion)),
    )
    results: ChunkedList[AlterUserScramCredentialsResult] = ChunkedList()
    is_late = False
    for user, of_user in changes.items():
        if results:
            yield
        code, message = NOT_TRIED if is_late else (yield from result_of(_alter(broker, user, of_user)))
        is_late = code == ErrorCode.REQUEST_TIMED_OUT
        results.append(AlterUserScramCredentialsResult(user=user, error_code=code, error_message=message))
    return AlterUserScramCredentialsResponse(results=results)


def _alter(broker: Broker, user: str, changes: list[_Change]) -> Outcome | asyncio.Future[Outcome]:
    try:
        _check(user, changes)
    except ApiError as error:
        return error.code, error.message
    return change_in_time(
        broker,
        change_quota(broker.zk, QuotaEntity(user=user), lambda before: _changed(user, before, changes)),
        lambda new: broker.configs.user_credentials.set_user(user, new),
        refusal("the credentials of a user"),
    )


def _check(user: str, changes: Iterable[_Change]) -> None:
    seen: set[int] = set()
    if not user:
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    for change in changes:
        if change.mechanism not in MECHANISMS:
            raise ApiError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
        if change.mechanism in seen:
            raise ApiError(
                ErrorCode.DUPLICATE_RESOURCE,
                "A user credential cannot be altered twice in the same request",
            )
        seen.add(change.mechanism)
        if change.upsertion is not None:
            _check_upsertion(change.upsertion)


def _check_upsertion(upsertion: ScramCredentialUpsertion) -> None:
    code = ErrorCode.UNACCEPTABLE_CREDENTIAL
    if upsertion.iterations < MIN_ITERATIONS:
        raise ApiError(code, "Too few iterations")
    if upsertion.iterations > MAX_ITERATIONS:
        raise ApiError(code, "Too many iterations")
    if len(upsertion.salt) < MIN_SALT_BYTES or not upsertion.salted_password:
        raise ApiError(code, f"Salt and password must not be empty; the salt needs {MIN_SALT_BYTES} bytes")


def _changed(user: str, before: Properties, changes: Iterable[_Change]) -> Properties:
    after = dict(before)
    for mechanism, upsertion in changes:
        name = MECHANISMS[mechanism]
        if upsertion is not None:
            salted, salt = bytes(upsertion.salted_password), bytes(upsertion.salt)
            after[name] = credential_of(name, salted, salt, upsertion.iterations).to_text()
        elif after.pop(name, None) is None:
            raise ApiError(ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")
    return after


def _refused(ctx: RequestContext, req: AlterUserScramCredentialsRequest, error: ErrorCode) -> Any:
    return begin(_refusal(req, error))


def _refusal(req: AlterUserScramCredentialsRequest, error: ErrorCode) -> Steps[AlterUserScramCredentialsResponse]:
    users: dict[str, None] = {}
    yield from each(req.deletions, lambda deletion: users.setdefault(deletion.name))
    yield from each(req.upsertions, lambda upsertion: users.setdefault(upsertion.name))
    results = yield from each(
        users,
        lambda user: AlterUserScramCredentialsResult(user=user, error_code=error, error_message=NOT_AUTHORIZED),
    )
    return AlterUserScramCredentialsResponse(results=results)


_GUARD: Final = needs_cluster(AclOperation.ALTER, _refused)
API = Api(
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    versions=(0, 0),
    plane=Plane.DATA,
    handle=handle,
    guard=_GUARD,
)

"""The one place that decides what the sender of a request may do: clients by access control entries, brokers as peers.

Without an authorizer every client may do everything, and a check costs one attribute.
"""

from __future__ import annotations

from collections.abc import Callable
from logging import DEBUG, getLogger
from typing import Final

from klamm.apis.api_declaration import Broker, RequestContext
from klamm.errors import ErrorCode
from klamm.security.acl import audit
from klamm.security.acl.bindings import CLUSTER_NAME, AclOperation, ResourceType

FAILED: Final = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
"""The error of an operation that is not allowed."""
is_logged: Final = getLogger(audit.LOGGER).isEnabledFor
"""Whether the audit log has a level. DEBUG: operations that are allowed."""
_CLUSTER: Final = ResourceType.CLUSTER
_CLUSTER_ACTION: Final = AclOperation.CLUSTER_ACTION


def may(
    broker: Broker,
    ctx: RequestContext,
    operation: AclOperation,
    kind: ResourceType,
    name: str,
    *,
    is_probe: bool = False,
) -> bool:
    """Return whether the client may do the operation. With `is_probe`, a refusal is not written to the audit log."""
    acls = broker.acls
    if acls is None:
        return True
    channel = ctx.channel
    principal, host = channel.principal, channel.client_host
    authorizer = acls.authorizer
    # Looked up here: a call would cost as much as the look-up.
    is_allowed = authorizer.remembered.get((principal, host, operation, kind, name))
    if is_allowed is None:
        is_allowed = authorizer.is_allowed(principal, host, operation, kind, name)
    if is_allowed:
        if is_logged(DEBUG):
            audit.allowed(principal, host, operation, kind, name, ctx.api_name)
        return True
    now = broker.clock.monotonic()
    acls.denials.log(principal, host, operation, kind, name, ctx.api_name, now, is_probe=is_probe)
    return False


def remembering(
    broker: Broker, ctx: RequestContext, operation: AclOperation, kind: ResourceType, *, is_probe: bool = False
) -> Callable[[str], bool]:
    """Return `may` for many names of one request: each name is decided, and logged, once."""
    decided: dict[str, bool] = {}
    ctx.hold(decided)

    def is_allowed(name: str) -> bool:
        known = decided.get(name)
        if known is None:
            known = decided[name] = may(broker, ctx, operation, kind, name, is_probe=is_probe)
        return known

    return is_allowed


def may_on_cluster(broker: Broker, ctx: RequestContext, operation: AclOperation, *, is_probe: bool = False) -> bool:
    return may(broker, ctx, operation, _CLUSTER, CLUSTER_NAME, is_probe=is_probe)


def may_on_any(broker: Broker, ctx: RequestContext, operation: AclOperation, kind: ResourceType) -> bool:
    """Return whether the client may do the operation on at least one resource of this type (KIP-679)."""
    acls = broker.acls
    if acls is None:
        return True
    channel = ctx.channel
    principal, host = channel.principal, channel.client_host
    if acls.authorizer.is_allowed_on_any(principal, host, operation, kind):
        if is_logged(DEBUG):
            audit.allowed(principal, host, operation, kind, None, ctx.api_name)
        return True
    acls.denials.log(principal, host, operation, kind, None, ctx.api_name, broker.clock.monotonic())
    return False


def operations(broker: Broker, ctx: RequestContext, kind: ResourceType, name: str, *, all_of_them: int) -> int:
    """Return the operations that the client may do, as bits; `all_of_them` without an authorizer."""
    acls = broker.acls
    if acls is None:
        return all_of_them
    return acls.authorizer.operations(ctx.channel.principal, ctx.channel.client_host, kind, name)


def cluster_operations(broker: Broker, ctx: RequestContext, *, all_of_them: int) -> int:
    """The same for the cluster, which needs DESCRIBE; otherwise none are reported."""
    if not may_on_cluster(broker, ctx, AclOperation.DESCRIBE):
        return 0
    return operations(broker, ctx, _CLUSTER, CLUSTER_NAME, all_of_them=all_of_them)


def is_open(broker: Broker, ctx: RequestContext) -> bool:
    """Return whether no rule decides what the sender may do on the cluster.

    There is no authorizer, or the sender is not a super user, the cluster has no entries, and
    `allow.everyone.if.no.acl.found` allows everything.
    """
    acls = broker.acls
    return acls is None or acls.authorizer.is_open(ctx.channel.principal, _CLUSTER, CLUSTER_NAME)


def is_peer(broker: Broker, ctx: RequestContext, sender: int | None = None, *, is_probe: bool = False) -> bool:
    """Return whether the request may come from another broker; `sender` is the id that it claims, if it names one.

    If an authorizer has a rule, the principal needs CLUSTER_ACTION, as in Kafka. Otherwise the connection must be that
    of a registered broker that has proven itself, unless `klamm.admit.unproven.peers` admits everyone.
    """
    if not is_open(broker, ctx):
        return may_on_cluster(broker, ctx, _CLUSTER_ACTION, is_probe=is_probe)
    if broker.config.klamm_admit_unproven_peers:
        return True
    channel = ctx.channel
    peer = channel.peer_broker_id
    is_proven = peer is not None and sender in (None, peer)
    if not is_proven and broker.acls is not None:
        principal, host, now = channel.principal, channel.client_host, broker.clock.monotonic()
        asked = _CLUSTER_ACTION, _CLUSTER, CLUSTER_NAME
        broker.acls.denials.log(principal, host, *asked, ctx.api_name, now, is_probe=is_probe)
    return is_proven

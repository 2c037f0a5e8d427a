"""Proofs of brokers: the cluster's secret, clients that present a proof, and one that guesses the secret."""

from __future__ import annotations

from random import Random
from typing import Any, Final

from klamm.errors import ErrorCode
from klamm.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from klamm.protocol.messages.sasl_handshake import SaslHandshakeRequest
from klamm.security.client_security import ClientSecurity
from klamm.security.sasl.client_mechanisms import SaslCredentials, sasl_client
from klamm.security.sasl.mechanisms import KLAMM_PEER
from klamm.security.secret import Secret
from klamm.sim.checkers import Violation, require
from klamm.sim.clients import Client
from klamm.sim.cluster import SimCluster, SimNode
from klamm.sim.guarded import attempts
from klamm.zk.model import paths

_GUESSED: Final = "a guessed secret"


def peer_secret(cluster: SimCluster) -> str:
    znode = cluster.zookeeper.tree.nodes[paths.PEER_SECRET]
    return (znode.data or b"").decode()


def proof_of(broker_id: int, secret: str) -> ClientSecurity:
    return ClientSecurity(peer=_credentials(broker_id, secret))


def _credentials(broker_id: int, secret: str) -> SaslCredentials:
    return SaslCredentials(KLAMM_PEER, str(broker_id), Secret(secret))


async def guess(cluster: SimCluster) -> None:
    """A client that does not know the secret cannot prove anything, even if it does not check the broker's answer."""
    node = next(node for node in cluster.nodes.values() if node.broker is not None)
    await _connect_with_guess(cluster, node)
    await _send_guess(cluster, node)


async def _connect_with_guess(cluster: SimCluster, node: SimNode) -> None:
    guesser = Client("guesser", cluster.addresses, Random(cluster.seed), proof_of(1, _GUESSED))
    try:
        await guesser.ask(node.id, *next((each.request, each.version) for each in attempts.as_broker(cluster, 1)))
    except OSError:
        cluster.counts["refused proofs"] += 1
    else:
        raise Violation(f"broker {node.id} accepts a proof with a wrong secret")


async def _send_guess(cluster: SimCluster, node: SimNode) -> None:
    """The messages of an exchange one by one: a client that connects ends it if the broker's own proof is wrong."""
    guesser = Client("guesser", cluster.addresses, Random(cluster.seed))
    begun = await guesser.ask(node.id, SaslHandshakeRequest(mechanism=KLAMM_PEER), 1)
    require(begun.error_code == ErrorCode.NONE, f"broker {node.id} does not know the proof of brokers")
    exchange = sasl_client(_credentials(1, _GUESSED))
    challenge = await guesser.ask(node.id, SaslAuthenticateRequest(auth_bytes=exchange.first()), 1)
    proof = exchange.step(bytes(challenge.auth_bytes))
    answer: Any = await guesser.ask(node.id, SaslAuthenticateRequest(auth_bytes=proof or b""), 1)
    if answer.error_code != ErrorCode.SASL_AUTHENTICATION_FAILED:
        raise Violation(f"broker {node.id} does not compare proofs")

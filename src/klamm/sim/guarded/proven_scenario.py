"""The scenario of level 2 in which brokers prove their id to each other.

Every second seed has an authorizer that has no entries and allows everyone everything: it does not replace the proofs.
A stranger, who has no proof, and a traitor, who has the proof of one broker, send requests of other brokers. Each must
be refused, at any moment of a run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from klamm.config.authorizer_keys import ACL_AUTHORIZER
from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.security.client_security import PLAINTEXT
from klamm.sim.cluster import SimCluster, SimNode
from klamm.sim.cluster_runner import Scenario
from klamm.sim.guarded import attempts
from klamm.sim.guarded.attempts import Attempt, RefusedClient, of_cluster
from klamm.sim.guarded.intruder import TRANSACTIONAL_ID
from klamm.sim.guarded.proofs import guess, peer_secret, proof_of

_CLUSTER: Final = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
_TOPIC: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED


class ProvenScenario(Scenario):
    def __init__(self, cluster: SimCluster) -> None:
        super().__init__(cluster)
        cluster.settings["klamm.admit.unproven.peers"] = False
        if _has_authorizer(cluster):
            cluster.settings |= {"authorizer.class.name": ACL_AUTHORIZER, "allow.everyone.if.no.acl.found": True}

    async def _start_clients(self) -> None:
        await super()._start_clients()
        cluster = self._cluster
        secret = peer_secret(cluster)
        await self._while_watching(cluster.loop.spawn(cluster.client_process("guesser"), guess(cluster)))
        for impostor in (Impostor(cluster, None, secret), *(Impostor(cluster, each, secret) for each in cluster.nodes)):
            process = cluster.client_process(impostor.name)
            await self._while_watching(cluster.loop.spawn(process, impostor.try_everything()))
            self._clients.append(cluster.loop.spawn(process, impostor.run()))


class Impostor(RefusedClient):
    """Sends requests in the name of other brokers. `own_id` is the broker whose proof it has; a stranger has none."""

    def __init__(self, cluster: SimCluster, own_id: int | None, secret: str) -> None:
        security = PLAINTEXT if own_id is None else proof_of(own_id, secret)
        super().__init__("stranger" if own_id is None else f"traitor-{own_id}", cluster, security)
        self._own_id = own_id

    def attempts(self, node: SimNode, tp: TopicPartition) -> Iterator[Attempt]:
        sender = self._rng.choice([other for other in self._cluster.nodes if other != self._own_id])
        yield from attempts.as_controller(self._cluster, node, tp, sender)
        yield from attempts.as_broker(self._cluster, sender)
        fetch = attempts.fetch(node, tp, sender)
        if _has_authorizer(self._cluster):  # it refuses partitions, and shows the ends of epochs to consumers too
            yield Attempt(fetch, 12, lambda response: response.responses[0].partitions[0].error_code, _TOPIC)
        else:
            yield of_cluster(fetch, 12)
            yield attempts.epoch_ends(tp, sender, _CLUSTER)
        if self._own_id is None:  # these name no sender: any broker may coordinate transactions
            yield attempts.commit_marker(tp)
            yield attempts.partitions_of_transaction(tp, TRANSACTIONAL_ID)


def _has_authorizer(cluster: SimCluster) -> bool:
    return cluster.seed % 2 == 1

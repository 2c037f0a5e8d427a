"""ClusterStatus: what `klamm cluster status` found out, as a value."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from klamm.cli.cluster_partitions import MissingBroker, PartitionStatus
from klamm.cli.replica_problems import ReplicaProblem

if TYPE_CHECKING:
    from klamm.client.missing_rights import MissingRight


@dataclass(slots=True)
class BrokerStatus:
    """One broker. Unknown values are None.

    `partitions_behind` counts partitions whose state differs from the controller's. `unacknowledged_requests` and
    `oldest_request_ms` are the controller's requests to this broker without a response, and the age of the oldest.
    `metrics_refusal` is the reason why the broker's metrics refuse the command's login, if they do.
    `listeners` are its advertised addresses, such as `PLAINTEXT://localhost:9092`.
    """

    id: int
    host: str
    port: int
    rack: str | None = None
    answers: bool = False
    controller_id: int | None = None
    controller_epoch: int | None = None
    partitions_behind: int | None = None
    unacknowledged_requests: int | None = None
    oldest_request_ms: float | None = None
    metrics_refusal: str | None = None
    listeners: list[str] = field(default_factory=list)


@dataclass(slots=True)
class ClusterStatus:
    """The whole cluster.

    `controller_problem` is None if the controller claims the role. `zookeeper_answers` is None if no broker reports it.
    `problems` are sentences about problems that no partition shows, with remedies. `unchecked` is the reason why znodes
    were not checked, None if they were. Partitions that are only being moved are not among the unhealthy ones.
    `missing_rights` are operations that the user may not perform: without them, the other values are those of a part of
    the cluster.
    """

    cluster_id: str | None = None
    controller_id: int = -1
    controller_epoch: int | None = None
    controller_problem: str | None = None
    zookeeper_answers: bool | None = None
    topics: int = 0
    partitions: int = 0
    under_replicated_partitions: int = 0
    under_min_isr_partitions: int = 0
    offline_partitions: int = 0
    brokers: list[BrokerStatus] = field(default_factory=list)
    missing_brokers: list[MissingBroker] = field(default_factory=list)
    unwell_partitions: list[PartitionStatus] = field(default_factory=list)
    moving_partitions: list[PartitionStatus] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    unchecked: str | None = None
    replica_problems: list[ReplicaProblem] = field(default_factory=list)
    missing_rights: list[MissingRight] = field(default_factory=list)

    @property
    def can_decide(self) -> bool:
        return self.controller_problem is None and self.zookeeper_answers is not False


def document(found: ClusterStatus) -> dict[str, Any]:
    return {**asdict(found), "missing_rights": [right.as_json() for right in found.missing_rights]}

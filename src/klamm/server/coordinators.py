"""The coordinators of a broker process: consumer groups and transactions."""

from __future__ import annotations

from collections.abc import Callable

from klamm.config import KafkaConfig
from klamm.coordinator.broker_adapters import create_group_coordinator
from klamm.coordinator.transaction.transaction_shell import BrokerParts, create_transaction_coordinator


class Coordinators:
    def __init__(self, config: KafkaConfig, parts: BrokerParts, new_uuid: Callable[[], str]) -> None:
        self.groups = create_group_coordinator(
            config=config,
            replicas=parts.replicas,
            append_records=parts.append_records,
            append_transactional=parts.append_transactional,
            metadata=parts.metadata,
            clock=parts.clock,
            loop=parts.loop,
            metrics=parts.metrics,
            new_uuid=new_uuid,
            last_connection=parts.last_connection,
        )
        self.transactions, self._marker_sender = create_transaction_coordinator(config, parts)

    async def close(self) -> None:
        """End the connections of the coordinators, after the coordinators themselves."""
        await self._marker_sender.close()

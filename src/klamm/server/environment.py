"""A broker's environment: time, randomness, files, threads, ZooKeeper. The simulator supplies its own."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field

from klamm.broker import Broker
from klamm.clock import Clock, SystemClock
from klamm.config import KafkaConfig
from klamm.controller.config import BLOCK_SIZE
from klamm.controller.controller_runner import ControllerRunner
from klamm.coordinator.transaction.transaction_metadata import MAX_PRODUCER_EPOCH
from klamm.log.files import Files
from klamm.server.broker_addresses import Resolve, resolve_name
from klamm.server.coordination import Coordination

OnFailure = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Environment:
    """Defaults to the real machine.

    `files` None is the file system; `file_worker` None is a thread of the log manager, `record_worker` None is the
    thread that validates large batches. `on_built` is called with the broker before it registers. A small
    `max_producer_epoch` lets the epochs of transactional producers overflow early, and a small `producer_ids_per_block`
    lets blocks end early. `resolve` None: hosts are addresses.
    """

    clock: Clock = field(default_factory=SystemClock)
    new_rng: Callable[[], random.Random] = random.Random
    new_uuid: Callable[[], uuid.UUID] = uuid.uuid4
    files: Files | None = None
    file_worker: Executor | None = None
    record_worker: Executor | None = None
    coordination: Callable[[KafkaConfig, OnFailure | None], Coordination] = Coordination
    controller_runner: type[ControllerRunner] = ControllerRunner
    max_producer_epoch: int = MAX_PRODUCER_EPOCH
    producer_ids_per_block: int = BLOCK_SIZE
    resolve: Resolve | None = resolve_name
    on_built: Callable[[Broker], None] = lambda broker: None

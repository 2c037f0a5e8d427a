"""Attacks on the embedded ZooKeeper by somebody who speaks its protocol, and on the znodes of a running cluster."""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Callable
from typing import Final

from klamm.zk.client.blocking import BlockingSession
from klamm.zk.model import paths
from klamm.zk.model.jute import OpCode, string_bytes
from klamm.zk.model.ops import Create, Delete, SetData, ZkError
from tests.support.attack_target import LOOPBACK, TIMEOUT_S, Target
from tests.unit.zk.raw_client import RawClient

_MULTI_END: Final = struct.pack(">i?i", -1, True, -1)
_PAUSE_S: Final = 0.05
_DAMAGE_S: Final = 0.5
"""How long no broker can become the controller."""


def session(target: Target) -> BlockingSession:
    return BlockingSession(f"{LOOPBACK}:{target.zookeeper}", TIMEOUT_S)


def multi_reads(target: Target) -> None:
    """Requests of some kilobytes that name a large znode very often; some of the clients do not read the answers."""
    path = f"/attack-{target.rng.randrange(1 << 30)}"
    with session(target) as owner:
        owner.write([Create(path, bytes(target.count(1_000_000)))])
        with contextlib.suppress(EOFError, OSError), contextlib.ExitStack() as stack:
            for _ in range(target.count(20)):
                silent = stack.enter_context(RawClient(target.zookeeper)).connect()
                silent.send(OpCode.MULTI_READ, _multi_read(path, 15))
            asking = stack.enter_context(RawClient(target.zookeeper)).connect()
            for names in (15, 690, 5_000):
                asking.ask(OpCode.MULTI_READ, _multi_read(path, names))
        owner.write([Delete(path)])


def _multi_read(path: str, names: int) -> bytes:
    one = struct.pack(">i?i", OpCode.GET_DATA, False, -1) + string_bytes(path) + b"\0"
    return one * names + _MULTI_END


def deleted_registration(target: Target) -> None:
    """A broker's registration is deleted; the broker registers again."""
    path = paths.broker_path(target.rng.randrange(len(target.ports)) + 1)
    with session(target) as owner:
        owner.write([Delete(path)])
        _wait(lambda: owner.exists(path))


def damaged_controller_epoch(target: Target) -> None:
    """Garbage in the controller epoch, which no controller survives. The operator's remedy ends the attack.

    If another attacker changes the znode at the same time, the version is another one, and nothing is written.
    """
    with session(target) as owner:
        epoch, version = owner.get_with_version(paths.CONTROLLER_EPOCH)
        if epoch is None or not epoch.isdigit():
            return
        try:
            owner.write([SetData(paths.CONTROLLER_EPOCH, b"garbage", version), Delete(paths.CONTROLLER)])
            time.sleep(_DAMAGE_S)
        finally:
            _wait(lambda: _repair(owner, epoch))
        _wait(lambda: owner.exists(paths.CONTROLLER))


def _repair(owner: BlockingSession, epoch: bytes) -> bool:
    """Whether the controller epoch is a number. The answer to the garbage, or to its repair, may have been lost."""
    with contextlib.suppress(ZkError):
        found, version = owner.get_with_version(paths.CONTROLLER_EPOCH)
        if found is not None and found.isdigit():
            return True
        owner.write([SetData(paths.CONTROLLER_EPOCH, epoch, version)])
    return False


def _wait(is_over: Callable[[], bool]) -> None:
    """Wait for the brokers, so that the next attack meets a whole cluster; a siege judges what they do not repair."""
    deadline = time.monotonic() + TIMEOUT_S
    while not is_over() and time.monotonic() < deadline:
        time.sleep(_PAUSE_S)

"""The processes that copy the chain's records: one that ends is replaced, and others are killed or paused."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from tests.support.chain_copier import FENCED, Plan

Mode = Literal["tasks", "members"]
"""`tasks`: a transactional producer per partition. `members`: producers that are fenced with their group's member."""

COPIERS: Final = 3
HANGS_S: Final = 120.0
"""A copier that is in one call for longer is killed, which is a problem: faults are shorter."""
KNOWN_HANGS_S: Final = {"send_offsets_to_transaction": 12.0}
"""librdkafka issues 5456 and 5511: the call waits for a group coordinator that is gone, beyond its own timeout."""
TIMEOUT_MS: Final = {"tasks": 30_000, "members": 8_000}
"""Of transactions. The successor of a task ends the open transaction; that of a member ends by this time alone."""
_ROOT: Final = Path(__file__).parents[2]
_TAIL_BYTES: Final = 4_096
_BETWEEN_CHECKS_S: Final = 1.0


@dataclass(eq=False)
class Copier:
    """One process."""

    plan: Plan
    process: subprocess.Popen[bytes]

    def hanging_call(self) -> str | None:
        """The call in which a task has been for too long."""
        for path in Path(self.plan.folder).glob(f"{self.plan.name}[-.]*"):
            begun = [line for line in _last_lines(path) if line.startswith("> ")]
            if begun:
                _, moment, call = begun[-1].split(maxsplit=2)
                if time.time() - float(moment) > KNOWN_HANGS_S.get(call, HANGS_S):
                    return call
        return None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def _last_lines(path: Path) -> list[str]:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        return file.read().decode(errors="replace").splitlines()


class Copiers:
    """Three processes with distinct names. A replacement has another name and the same work."""

    def __init__(self, mode: Mode, base: Plan, partitions: int) -> None:
        self.mode = mode
        self.started = 0
        self.exits: list[int] = []
        """Of processes that ended by themselves."""
        self.hung: list[str] = []
        self.problems: list[str] = []
        self._base = replace(base, transaction_timeout_ms=TIMEOUT_MS[mode])
        self._partitions = partitions
        self._active: dict[int, Copier] = {}
        self._paused: list[Copier] = []
        self._zombies: list[Copier] = []
        self._next_check = 0.0

    @property
    def names(self) -> list[str]:
        return [copier.plan.name for copier in self._active.values()]

    @property
    def transactional_ids(self) -> list[str]:
        """The ids of the transactional producers that are in use."""
        if self.mode == "members":
            return self.names
        return [f"{self._base.transactional_id}-{partition}" for partition in range(self._partitions)]

    def start(self) -> None:
        for slot in range(COPIERS):
            self._start(slot)

    def _start(self, slot: int) -> None:
        self.started += 1
        plan = replace(self._base, name=f"copier-{self.started}", seed=self._base.seed + self.started)
        if self.mode == "tasks":
            plan = replace(plan, partitions=tuple(range(slot, self._partitions, COPIERS)))
        else:
            plan = replace(plan, transactional_id=plan.name)
        command = [sys.executable, "-m", "tests.support.chain_copier", plan.encode()]
        with Path(plan.folder, "copiers.log").open("ab") as log:
            process = subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._active[slot] = Copier(plan, process)

    def tend(self) -> None:
        """Replace the processes that have ended, and those that hang."""
        for slot, copier in list(self._active.items()):
            if (code := copier.process.poll()) is not None:
                self._note_exit(copier, code)
                self._start(slot)
        for copier in [*self._zombies]:
            if (code := copier.process.poll()) is not None:
                self._note_exit(copier, code)
                self._zombies.remove(copier)
        if time.monotonic() >= self._next_check:
            self._next_check = time.monotonic() + _BETWEEN_CHECKS_S
            self._replace_hanging()

    def _note_exit(self, copier: Copier, code: int) -> None:
        self.exits.append(code)
        if code != FENCED:
            log = Path(copier.plan.folder, "copiers.log")
            self.problems.append(f"{copier.plan.name} ended with {code}, see {log}")

    def _replace_hanging(self) -> None:
        """A zombie that hangs has no successor to start. It would keep its partitions, as a member of its group."""
        for slot, copier in list(self._active.items()):
            if self._kill_if_hanging(copier):
                self._start(slot)
        self._zombies = [copier for copier in self._zombies if not self._kill_if_hanging(copier)]

    def _kill_if_hanging(self, copier: Copier) -> bool:
        call = copier.hanging_call()
        if call is None:
            return False
        self.hung.append(call)
        if call not in KNOWN_HANGS_S:
            self.problems.append(f"{copier.plan.name} hung in {call}")
        copier.kill()
        return True

    def _slot(self, name: str) -> int:
        return next(slot for slot, copier in self._active.items() if copier.plan.name == name)

    def kill(self, name: str) -> None:
        slot = self._slot(name)
        self._active[slot].kill()
        self._start(slot)

    def pause(self, name: str) -> None:
        """Stop a process in the middle of its work and let another one take its place."""
        slot = self._slot(name)
        self._active[slot].process.send_signal(signal.SIGSTOP)
        self._paused.append(self._active[slot])
        self._start(slot)

    def resume(self) -> None:
        """Let the paused processes continue beside their successors. Earlier ones that still live are killed."""
        while self._zombies:
            self._zombies.pop().kill()
        for copier in self._paused:
            copier.process.send_signal(signal.SIGCONT)
        self._zombies, self._paused = self._paused, []

    def kill_all(self) -> None:
        for copier in [*self._active.values(), *self._paused, *self._zombies]:
            copier.kill()
        self._active.clear()
        self._paused.clear()
        self._zombies.clear()

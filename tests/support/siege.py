"""A siege: ordinary load on three brokers while a program attacks them, and an account of records, waits and memory.

    KLAMM_SIEGE_SECONDS=1200 KLAMM_SIEGE_SEED=7 pytest -s tests/hostile/test_siege.py

Nothing that was acknowledged may be missing, and memory stays under a ceiling. The longest wait of a probe is reported
per attack. The short form does not judge it: the attacker, the load and the brokers share the machine. From `LONG_S` on
two attackers work at once, at full size.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from klamm.testing import LocalCluster
from tests.support import chaos_clients
from tests.support.chaos_clients import Account, Reader, Writer

ROOT: Final = Path(__file__).parents[2]
TOPIC: Final = "siege"
DAMAGED_TOPIC: Final = "damaged"
LONG_S: Final = 600.0
"""Sieges of at least this length are the long form."""
LONGEST_WAIT_S: Final = 0.25
"""Of a probe, in the long form."""
P99_DURING_GIANT_FETCH_S: Final = 0.05
"""Of all probes while somebody fetches 500,000 partitions, in the long form."""
GROUP: Final = "siege-readers"
PARTITIONS: Final = 3
WRITERS: Final = 1
RECORDS_PER_S: Final = 500
WAIT_S: Final = 180.0


@dataclass
class Waits:
    """How long a broker kept the probe waiting; as its probe reported."""

    started: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    schedules: list[tuple[float, float, float]] = field(default_factory=list)
    """Seconds of each wait: the probe waited for a processor, the broker's loop did, the broker's loop ran."""

    def worst(self, count: int) -> list[tuple[float, float, tuple[float, float, float]]]:
        """(seconds, start, schedule) of the longest waits."""
        return sorted(zip(self.seconds, self.started, self.schedules, strict=True), reverse=True)[:count]


def percentile(seconds: list[float], share: float) -> float:
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@dataclass(frozen=True, slots=True)
class Load:
    """Seconds of processor time since some moment: all programs of the machine, those of the siege, and the host."""

    at: float
    machine: float
    siege: float
    stolen: float

    @classmethod
    def now(cls, pids: Iterable[int]) -> Load:
        """`pids`: processes of the siege that run. Its processes that have ended are counted, too."""
        own = os.times()
        siege = own.user + own.system + own.children_user + own.children_system
        ticks = os.sysconf("SC_CLK_TCK")
        user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split(maxsplit=9)[1:9])
        siege += sum(sum(map(int, stat_of(pid)[11:13])) for pid in pids) / ticks
        return cls(time.monotonic(), (user + nice + system + irq + softirq) / ticks, siege, steal / ticks)

    def text(self, before: Load) -> str:
        total = (self.at - before.at) * (os.cpu_count() or 1) / 100
        siege = self.siege - before.siege
        others = self.machine - before.machine - siege
        return (
            f"processor time: the siege {siege / total:.0f} % of {os.cpu_count()} processors, other programs"
            f" {others / total:.0f} %, taken by the host {(self.stolen - before.stolen) / total:.0f} %"
        )


def stat_of(pid: int) -> list[str]:
    """The fields of a process after its name."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


@dataclass(frozen=True, slots=True)
class Step:
    """One attack, in seconds since the epoch."""

    began: float
    ended: float
    name: str


class Attacker:
    """`tests.support.attacks` in a process of its own."""

    def __init__(self, command: list[str]) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True)

    def finish(self) -> tuple[list[Step], str | None]:
        """Wait for its end; return its attacks, or why it failed."""
        output, errors = self._process.communicate()
        if self._process.returncode != 0:
            return [], f"the attacker ended with {self._process.returncode}: {errors[-2_000:]}"
        return [Step(*fields) for fields in json.loads(output)], None

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


class Probe:
    """`tests.support.probe` of one broker, in a process of its own."""

    def __init__(self, port: int, broker_pid: int, account: Account) -> None:
        self.name = f"probe of {port}"
        self.waits = Waits()
        self._account = account
        self._command = [sys.executable, "-m", "tests.support.probe", "--port", str(port), "--topic", TOPIC]
        self._command += ["--broker-pid", str(broker_pid)]
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(self._command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def end(self) -> None:
        """End its input and adopt its measurements."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            output, errors = process.communicate(timeout=WAIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            output, errors = process.communicate()
        if process.returncode != 0:
            self._account.problems.append(f"{self.name} ended with {process.returncode}: {errors[-500:]}")
        else:
            self.waits = Waits(**json.loads(output))


class Siege:
    """`run` works for about `seconds` and returns the problems it found; `report` says what happened."""

    def __init__(
        self,
        cluster: LocalCluster,
        *,
        seconds: float,
        seed: int,
        size: float,
        attackers: int = 1,
        only: Sequence[str] = (),
    ) -> None:
        self.cluster = cluster
        self.seconds = seconds
        self.seed = seed
        self.size = size
        self.attackers = attackers
        self.only = only
        """The attacks that take part; all of them if empty."""
        self.account = Account(PARTITIONS)
        self.is_long = seconds >= LONG_S
        self.attacks: Counter[str] = Counter()
        self.peak_bytes: dict[str, int] = {}
        """By process."""
        self._load = ""
        self._steps: list[Step] = []
        self._probes = [
            Probe(cluster.port(broker_id), cluster.pid(broker_id), self.account) for broker_id in cluster.broker_ids
        ]

    def run(self) -> list[str]:
        cluster = self.cluster
        servers = cluster.bootstrap_servers
        cluster.create_topic(TOPIC, PARTITIONS, 3, {"min.insync.replicas": 2})
        cluster.create_topic(DAMAGED_TOPIC, 1, 3)
        chaos_clients.commit_zero(servers, TOPIC, GROUP, PARTITIONS)
        writers = [Writer(servers, TOPIC, i, RECORDS_PER_S / WRITERS, self.account) for i in range(WRITERS)]
        reader = Reader(servers, TOPIC, GROUP, 0, self.account)
        workers = [*writers, reader]
        try:
            for worker in workers:
                worker.start()
            for probe in self._probes:
                probe.start()
            self._attack()
            for writer in writers:
                writer.stop()
                writer.join()
            return self._judge()
        finally:
            for probe in self._probes:
                probe.end()
            for worker in workers:
                worker.stop()
            for worker in workers:
                worker.join(WAIT_S)

    def _attack(self) -> None:
        cluster = self.cluster
        command = [sys.executable, "-m", "tests.support.attacks", "--topic", TOPIC, "--partitions", str(PARTITIONS)]
        command += ["--damaged-topic", DAMAGED_TOPIC]
        command += ["--brokers", *(str(cluster.port(broker_id)) for broker_id in cluster.broker_ids)]
        command += ["--zookeeper", cluster.zookeeper_connect.split("/")[0].rpartition(":")[2]]
        command += ["--seconds", str(self.seconds), "--size", str(self.size)]
        if self.only:
            command += ["--only", *self.only]
        servers = [*(cluster.pid(broker_id) for broker_id in cluster.broker_ids), cluster.zookeeper_pid]
        before = Load.now(servers)
        attackers = [Attacker([*command, "--seed", str(self.seed + number)]) for number in range(self.attackers)]
        try:
            for attacker in attackers:
                steps, problem = attacker.finish()
                self.attacks.update(step.name for step in steps)
                self._steps += steps
                if problem is not None:
                    self.account.problems.append(problem)
        finally:
            for attacker in attackers:
                attacker.kill()
        for probe in self._probes:
            probe.end()
        self._load = Load.now(servers).text(before)
        for broker_id in cluster.broker_ids:
            self.peak_bytes[f"broker {broker_id}"] = peak_bytes(cluster.pid(broker_id))
        self.peak_bytes["ZooKeeper"] = peak_bytes(cluster.zookeeper_pid)

    def _judge(self) -> list[str]:
        servers = self.cluster.bootstrap_servers
        chaos_clients.read_through(servers, DAMAGED_TOPIC, WAIT_S)
        log = chaos_clients.read_log(servers, TOPIC, PARTITIONS, WAIT_S)
        problems = chaos_clients.check(self.account, log)
        if not problems:
            self.cluster.wait_for(
                lambda: not chaos_clients.unread(self.account, log), WAIT_S, what="The group has read everything"
            )
        return problems

    def report(self) -> str:
        lines = [
            f"siege with seed {self.seed}, size {self.size:g}: {sum(self.attacks.values())} attacks in"
            f" {self.seconds:g} s, {self.account.acked_count} records acknowledged,"
            f" {len(self.account.timed_out)} timed out"
        ]
        for probe in self._probes:
            if not probe.waits.seconds:
                continue
            waits = probe.waits
            tail = f"p99 {1000 * percentile(waits.seconds, 0.99):.1f} ms"
            lines.append(f"  {probe.name}: {len(waits.seconds)} answers, {tail}, longest:")
            for wait, at, (own, broker, ran) in waits.worst(5):
                lines.append(
                    f"    {1000 * wait:.0f} ms: the broker's loop ran for {1000 * ran:.0f} ms and waited for a"
                    f" processor for {1000 * broker:.0f} ms, the probe for {1000 * own:.0f} ms; during"
                    f" {self._during(at, at + wait)}"
                )
        work = self.work_by_attack()
        for name, seconds in sorted(self.waits_by_attack().items()):
            tail = f"p99 {1000 * percentile(seconds, 0.99):.1f} ms, most work of a loop {1000 * max(work[name]):.0f} ms"
            lines.append(f"  {name}: {self.attacks[name]} times, longest wait {1000 * max(seconds):.0f} ms, {tail}")
        peaks = ", ".join(f"{process} {peak >> 20} MiB" for process, peak in self.peak_bytes.items())
        return "\n".join([*lines, f"  peak memory: {peaks}", f"  {self._load}"])

    @property
    def longest_wait_s(self) -> float:
        return max(second for probe in self._probes for second in probe.waits.seconds)

    def waits_by_attack(self) -> dict[str, list[float]]:
        """The waits of all probes during each attack; with two attackers a wait may count for several."""
        return self._by_attack(lambda waits: waits.seconds)

    def work_by_attack(self) -> dict[str, list[float]]:
        """For how long the broker's loop ran in each of these waits: other programs of the machine do not matter."""
        return self._by_attack(lambda waits: [ran for _, _, ran in waits.schedules])

    def _by_attack(self, figures: Callable[[Waits], list[float]]) -> dict[str, list[float]]:
        found: dict[str, list[float]] = defaultdict(list)
        steps = sorted(self._steps, key=lambda step: step.began)
        for probe in self._probes:
            under_way: list[Step] = []
            following = iter(steps)
            step = next(following, None)
            waits = probe.waits
            for started, seconds, figure in zip(waits.started, waits.seconds, figures(waits), strict=True):
                while step is not None and step.began <= started + seconds:
                    under_way.append(step)
                    step = next(following, None)
                under_way = [one for one in under_way if one.ended >= started]
                for one in under_way:
                    found[one.name].append(figure)
        return found

    def _during(self, start: float, end: float) -> str:
        """The attacks that were under way in a time."""
        return " ".join(step.name for step in self._steps if step.began <= end and step.ended >= start) or "none"


def peak_bytes(pid: int) -> int:
    """The largest resident memory that a process ever had."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"process {pid} does not report its memory")


def chosen_seed() -> int:
    """KLAMM_SIEGE_SEED, or another one every time."""
    return int(os.environ.get("KLAMM_SIEGE_SEED") or Random().randrange(1_000_000))


def chosen_seconds(default: float) -> float:
    return float(os.environ.get("KLAMM_SIEGE_SECONDS") or default)


def chosen_attackers(default: int) -> int:
    """KLAMM_SIEGE_ATTACKERS: how many attackers work at once."""
    return int(os.environ.get("KLAMM_SIEGE_ATTACKERS") or default)


def chosen_attacks() -> list[str]:
    """KLAMM_SIEGE_ONLY: the attacks that take part, between commas; all of them if it is not set."""
    return [name for name in (os.environ.get("KLAMM_SIEGE_ONLY") or "").split(",") if name]


def chosen_size(default: float) -> float:
    """KLAMM_SIEGE_SIZE: how large the attacks are; 1 is full size."""
    return float(os.environ.get("KLAMM_SIEGE_SIZE") or default)

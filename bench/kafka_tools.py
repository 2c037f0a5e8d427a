"""Kafka's own load tools, in a JVM of their own: ProducerPerformance, ConsumerPerformance, EndToEndLatency."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from typing import Final

from bench.kafka_distribution import FOLDER, libraries
from klamm.errors import KlammError

TIMEOUT_S: Final = 300.0
QUIET_LOG4J: Final = "log4j.rootLogger=ERROR, err\nlog4j.appender.err=org.apache.log4j.ConsoleAppender\n" + (
    "log4j.appender.err.target=System.err\nlog4j.appender.err.layout=org.apache.log4j.SimpleLayout\n"
)


def produce(bootstrap: str, topic: str, records: int, size: int, acks: str) -> float:
    """Records a second, over the whole run."""
    arguments = ["--topic", topic, "--num-records", str(records), "--record-size", str(size), "--throughput", "-1"]
    arguments += ["--producer-props", f"bootstrap.servers={bootstrap}", f"acks={acks}"]
    said = run_tool("ProducerPerformance", arguments)
    found = re.findall(rf"^{records} records sent, ([\d.]+) records/sec", said, re.MULTILINE)
    if not found:
        raise KlammError(f"ProducerPerformance printed no rate:\n{said[-2000:]}")
    return float(found[-1])


def consume(bootstrap: str, topic: str, records: int) -> float:
    """Records a second while it fetches, without the time that its group took to form."""
    arguments = ["--bootstrap-server", bootstrap, "--topic", topic, "--messages", str(records)]
    said = run_tool("ConsumerPerformance", [*arguments, "--hide-header", "--timeout", "60000"])
    lines = [line.split(", ") for line in said.splitlines() if line.count(", ") == 9]
    if not lines or int(lines[-1][4]) < records:
        raise KlammError(f"ConsumerPerformance did not get {records} records:\n{said[-2000:]}")
    return float(lines[-1][9].replace(",", "."))


def end_to_end(bootstrap: str, topic: str, records: int, size: int, acks: str) -> Mapping[str, float]:
    """Milliseconds of one record at a time, from `send` to its arrival in a consumer: p50, p99, p999."""
    said = run_tool("EndToEndLatency", [bootstrap, topic, str(records), acks, str(size)])
    found = re.search(r"50th = ([\d.]+), 99th = ([\d.]+), 99.9th = ([\d.]+)", said)
    if found is None:
        raise KlammError(f"EndToEndLatency printed no percentiles:\n{said[-2000:]}")
    return dict(zip(("p50", "p99", "p999"), map(float, found.groups()), strict=True))


def run_tool(tool: str, arguments: list[str], stdin: str = "") -> str:
    """Run one of Kafka's tools to its end and return what it printed.

    `tool` is a class of `org.apache.kafka.tools`, or of the older packages below `kafka`.
    """
    classpath = f"{libraries()}/*"
    log4j = FOLDER / "tools-log4j.properties"
    log4j.write_text(QUIET_LOG4J)
    java = ["java", "-Xmx512m", "-XX:+UseG1GC", "-Duser.language=en", f"-Dlog4j.configuration=file:{log4j}"]
    name = tool if tool.startswith("kafka.") else f"org.apache.kafka.tools.{tool}"
    command = [*java, "-cp", classpath, name, *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise KlammError(f"{tool} ended with {done.returncode}:\n{done.stdout[-1000:]}\n{done.stderr[-2000:]}")
    return done.stdout

"""A broker process: its arguments, its log, its loop, and the signals that end it."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Final

from klamm.config import KafkaConfig
from klamm.errors import KlammError
from klamm.metrics import LoopMeter
from klamm.server import file_limit, thread_names
from klamm.server.environment import Environment
from klamm.server.exposure import refuse_exposure
from klamm.server.kafka_server import KafkaServer
from klamm.server.log_format import FORMATS, set_up_logging
from klamm.server.running import Running

COLLECTOR_OFF_S: Final = 60
"""A start that takes longer waits for another process, and produces garbage meanwhile."""


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(prog="python -m klamm.server", description="Run one klamm broker until SIGTERM.")
    out.add_argument("--config", type=Path, help="Kafka's keys, in TOML or as .properties")
    out.add_argument("--override", action="append", default=[], metavar="KEY=VALUE", help="a key above the file's")
    out.add_argument("--ready-file", type=Path, help="file for the ports of the broker, as JSON, once it answers")
    out.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    out.add_argument("--log-format", default="text", choices=FORMATS, help="lines of text, or one JSON object per line")
    return out


def announce(path: Path, running: Running) -> None:
    """Write to a temporary file and rename it: a reader sees all of it or nothing."""
    text = json.dumps(
        {
            "broker_id": running.broker.id,
            "cluster_id": running.broker.cluster_id,
            "listeners": {e.listener: e.port for e in running.endpoints},
            "metrics_port": running.metrics_port,
            "pid": os.getpid(),
        }
    )
    aside = path.with_name(path.name + ".tmp")
    aside.touch(mode=0o600)
    aside.write_text(text + "\n")
    aside.replace(path)


async def _start(server: KafkaServer) -> Running:
    """Start without garbage collection: a start allocates long-lived objects, so collecting only wastes time."""
    gc.disable()
    limit = asyncio.get_running_loop().call_later(COLLECTOR_OFF_S, gc.enable)
    try:
        running = await server.start()
        LoopMeter.started("broker", running.broker.metrics)
        thread_names.publish()
        gc.freeze()
        return running
    finally:
        limit.cancel()
        gc.enable()


async def run(config: KafkaConfig, ready_file: Path | None, environment: Environment | None = None) -> None:
    """Run until a signal arrives. Raises KlammError if the broker cannot start or continue."""
    stop = asyncio.Event()
    failures: list[str] = []
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)

    def on_failure(sentence: str) -> None:
        failures.append(sentence)
        stop.set()

    server = KafkaServer(config, environment, on_failure=on_failure)
    starting = loop.create_task(_start(server), name="broker-start")
    stopping = loop.create_task(stop.wait(), name="broker-stop-signal")
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    try:
        if starting.done():
            running = starting.result()
            if ready_file is not None:
                announce(ready_file, running)
            await stopping
        else:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
    finally:
        stopping.cancel()
        await server.stop()
    if failures:
        raise KlammError(f"The broker has stopped. {failures[0]}")


def main(environment: Environment | None = None) -> int:
    args = parser().parse_args()
    set_up_logging(args.log_level, args.log_format)
    try:
        config = KafkaConfig.from_file(args.config, args.override)
        for warning in config.warnings:
            logging.getLogger("klamm").warning("%s", warning)
        file_limit.raise_to_hard_limit()
        run_loop(config, args.ready_file, environment)
    except KlammError as error:
        if args.log_format == "json":  # a reader of the log expects nothing but objects
            logging.getLogger("klamm").critical("%s", error)
        else:
            print(f"klamm broker: {error}", file=sys.stderr)
        return 1
    return 0


def run_loop(config: KafkaConfig, ready_file: Path | None = None, environment: Environment | None = None) -> None:
    """Run the broker loop, on uvloop. The small switch interval keeps it prompt beside the control loop's thread."""
    import uvloop

    refuse_exposure(config)
    sys.setswitchinterval(config.klamm_switch_interval_seconds)
    uvloop.run(run(config, ready_file, environment))

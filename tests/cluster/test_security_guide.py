"""The guide docs/how-to/security.md, done step by step."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from klamm.local.ports import ReservedPort
from tests.cluster.test_tutorials import environment, run, save, started
from tests.support.tutorial import Block, blocks

PORTS = ("9092", "9093", "9192", "9193", "12181")


def with_ports(block: Block, numbers: dict[str, str]) -> Block:
    text = block.text
    for port, number in numbers.items():
        text = text.replace(f":{port}", f":{number}").replace(f"={port}\n", f"={number}\n")
    return Block(block.language, block.title, block.role, text)


def test_from_nothing_to_a_secured_cluster(tmp_path: Path) -> None:
    reserved = {port: ReservedPort() for port in PORTS}
    numbers = {port: str(each.number) for port, each in reserved.items()}
    outputs: list[str] = []
    with ExitStack() as running:
        for port in reserved.values():
            running.callback(port.close)
        for block in (with_ports(each, numbers) for each in blocks("security.md", "how-to")):
            if block.title is not None:
                save(block, tmp_path)
            elif block.role == "background":
                running.enter_context(started(block.text.strip(), tmp_path, environment()))
            elif block.language == "sh":
                outputs.append(run(block.text, tmp_path, environment()))
    everything = "".join(outputs)
    assert "a guarded record" in everything and "SCRAM-SHA-512" in everything
    assert "User:alice" in everything

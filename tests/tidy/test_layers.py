"""Imports go one way. This file is the list of layers; ARCHITECTURE.md describes their purpose."""

from __future__ import annotations

import ast

from tests.support.source_tree import modules

LAYERS: tuple[frozenset[str], ...] = (
    frozenset(
        {
            "lazy_dataclass",
            "model",
            "errors",
            "clock",
            "state_directory",
            "allocator",
            "sockets",
            "config",
            "metrics",
            "control_log",
            "request_log",
        }
    ),
    frozenset({"protocol", "waiting"}),
    frozenset({"purgatory", "security"}),
    frozenset({"zk", "log", "network", "client"}),
    frozenset({"quota"}),
    frozenset({"metadata", "config_changes", "acl_changes"}),
    frozenset({"controller", "replica", "coordinator"}),
    frozenset({"broker"}),
    frozenset({"apis"}),
    frozenset({"server"}),
    frozenset({"local"}),
    frozenset({"testing"}),
    frozenset({"dashboard"}),
    frozenset({"cli"}),
)
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}
FOUNDATION = LAYERS[0]
SPARK_MAY_IMPORT = {"protocol", "client", "log", "security"} | FOUNDATION


def part_of(name: str) -> str:
    """`log` of `klamm.log.segment.Segment`; klamm itself is the empty part."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else ""


def is_allowed(importer: str, imported: str) -> bool:
    if importer == imported or imported in ("", "__version__"):
        return True
    if importer == "sim":
        return LEVEL[imported] <= LEVEL["server"]
    if imported == "sim":
        return importer == "cli"
    if importer == "spark":
        return imported in SPARK_MAY_IMPORT
    if imported == "spark":
        return importer == "cli"
    if LEVEL[importer] == LEVEL[imported]:
        return importer in FOUNDATION
    return LEVEL[importer] > LEVEL[imported]


def test_every_part_has_a_layer() -> None:
    parts = {part_of(module.name) for module in modules()} - {"", "sim", "spark"}
    assert parts <= LEVEL.keys()


def test_imports_go_one_way() -> None:
    wrong = [
        f"{module.place}:{line} imports {name}"
        for module in modules()
        for name, line in module.imports()
        if name.startswith("klamm.") and module.name != "klamm"
        if not is_allowed(part_of(module.name), part_of(name))
    ]
    assert not wrong, "\n".join(wrong)


def test_the_foundation_imports_no_third_party() -> None:
    """A tool that only reads a configuration or an error code should not need the broker's dependencies."""
    third_party = ("kazoo", "uvloop", "confluent_kafka", "cramjam", "crc32c", "typer", "rich", "prometheus_client")
    wrong = [
        f"{module.place}:{line} imports {name}"
        for module in modules()
        if part_of(module.name) in FOUNDATION
        for name, line in module.imports()
        if name.split(".")[0] in third_party
    ]
    assert not wrong, "\n".join(wrong)


def test_imports_are_absolute() -> None:
    """The tests of layers, rooms and cycles see absolute imports only."""
    relative = [
        f"{module.place}:{node.lineno}"
        for module in modules()
        for node in module.nodes
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert not relative, "\n".join(relative)

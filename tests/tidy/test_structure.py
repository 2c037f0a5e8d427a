"""The structure inside packages: no import cycles, few constructor parameters, private stays private, names differ.

`STILL_TO_MEND` lists the violations that are left. An entry that is no longer needed fails, so the list only shrinks.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache

import pytest

from tests.support.source_tree import ROOT, Module, modules
from tests.tidy.test_source import MAY_LOCK

MAX_PARAMETERS = 8
MAX_UNNAMED = 5
"""Arguments without names in a call of a dataclass that has more than `MAX_PARAMETERS` fields."""
MAY_PASS_UNNAMED = {
    "unnamed: klamm.apis.update_metadata PartitionState": "one per partition of the cluster; names take 0.2 us more",
}

ROOMS: dict[str, tuple[frozenset[str], ...]] = {
    "zk": (frozenset({"model"}), frozenset({"client", "server"})),
    "security": (
        frozenset({"secret", "failure_budget", "failure_log", "reading"}),
        frozenset({"http_document"}),
        frozenset({"tls", "sasl", "acl", "certificates"}),
        frozenset({"client_security", "listener_security"}),
        frozenset({"librdkafka", "outgoing", "redaction"}),
    ),
    "spark": (
        frozenset({"decode", "suggestion"}),
        frozenset({"source"}),
        frozenset({"sink"}),
        frozenset({"query"}),
        frozenset({"data_source"}),
        frozenset({"dataframes"}),
        frozenset({"tables"}),
        frozenset({"cluster"}),
        frozenset({"sql"}),
        frozenset({"pipeline"}),
    ),
}
"""The rooms of a package, lowest first. A room imports lower rooms only."""

THREAD_QUEUES = {
    "klamm.cli.cluster": "answers of bootstrap brokers for a command that takes the first one",
    "klamm.local.processes": "orders for the thread that starts processes",
    "klamm.zk.client.blocking": "connection states for a blocking caller",
}
MAY_SHARE_NAMES = {
    "config": ("controller coordinator", "the settings of a package"),
    "controlled_shutdown": ("apis server", "an API, and the request of the broker that stops"),
    "coordination": ("controller server", "the ZooKeeper session of the controller and of the broker"),
    "delete_records": ("apis replica", "an API, and its rules in the replica manager"),
    "docs": ("apis config", "generated documents"),
    "effects": ("controller coordinator", "the effects that a package without I/O yields"),
    "main": ("server zk.server", "an entry point"),
    "metrics": ("controller coordinator", "the metrics of a package"),
    "missed_deletions": ("metadata server", "a rule, and its driver in the server"),
    "producer_ids": ("controller replica", "blocks that the controller allocates, and the broker that uses them"),
    "read_steps": ("metadata server", "reads of rules, and their driver in the server"),
    "stray_replicas": ("replica server", "a rule, and its driver in the server"),
    "zk_session": ("sim zk.client", "the session and its simulated twin"),
}
"""Names of files that several packages have: exactly these packages, and why."""

PRIVATE = re.compile(r"(?!_asdict$|_fields$|_make$|_replace$)_[^_](.*[^_])?")
"""Names of private attributes. Those of named tuples, and of enums (`_missing_`), are public."""
FOREIGN = {"KafkaError._PARTITION_EOF", "frame._jdf", "spark._jsparkSession", "spark._jvm", "sys._getframe"}
FOREIGN |= {"os._exit", "spark.sparkContext._gateway", "task._log_destroy_pending"}
"""Attributes of other libraries that are private by name only, or without which a feature is impossible."""
SAME_CLASS = {
    "klamm.local.drill_network": "self.other",
    "klamm.sim.network": "self.peer",
}
"""Attributes that hold another object of their own class, which may use its private attributes."""

STILL_TO_MEND: tuple[str, ...] = (
    "unnamed: klamm.coordinator.transaction.transaction_records TransactionValue",
    "unnamed: klamm.log.cleaner CleanPlan",
)
CONFTEST = ROOT / "tests" / "conftest.py"


@cache
def violations() -> set[str]:
    found = {*cyclic_modules(), *long_constructors(), *private_accesses(), *private_imports(), *wrong_rooms()}
    # An exception that is no longer needed is a difference as well.
    return found | {*shared_names()} | ({*unnamed_arguments()} ^ MAY_PASS_UNNAMED.keys())


def cyclic_modules() -> Iterator[str]:
    """Modules that import each other, directly or through others; imports for type checking count."""
    graph = _import_graph()
    reachable = {name: _reachable(graph, name) for name in graph}
    return (f"cycle: {name}" for name in graph if name in reachable[name])


def _import_graph() -> dict[str, set[str]]:
    names = {module.name for module in modules()}
    graph: dict[str, set[str]] = {}
    for module in modules():
        imported = {name if name in names else name.rpartition(".")[0] for name, _ in module.imports()}
        graph[module.name] = (imported & names) - {module.name}
    return graph


def _reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    to_visit = list(graph[start])
    while to_visit:
        name = to_visit.pop()
        if name not in found:
            found.add(name)
            to_visit += graph[name]
    return found


def long_constructors() -> Iterator[str]:
    """Constructors that are written out; the fields of a dataclass are named at each call."""
    for module in modules():
        for node in _classes(module):
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                    arguments = method.args
                    count = len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs) - 1
                    if count > MAX_PARAMETERS:
                        yield f"parameters: {module.name}.{node.name}"


def private_accesses() -> Iterator[str]:
    """`x._y` where x is neither self nor cls, unless the class around it declares `_y` itself and x may be of it."""
    for module in modules():
        yield from _accesses(module, module.tree, frozenset())


def private_imports() -> Iterator[str]:
    """`from klamm.x import _y`. Tests may do so; what all tests need is public."""
    for module in (*modules(), Module(CONFTEST, CONFTEST.read_text())):
        for node in module.nodes:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("klamm"):
                for alias in node.names:
                    if PRIVATE.fullmatch(alias.name):
                        yield f"private: {module.place} imports {node.module}.{alias.name}"


def _accesses(module: Module, node: ast.AST, own: frozenset[str]) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from _accesses(module, child, _declared(child))
            continue
        if isinstance(child, ast.Attribute) and PRIVATE.fullmatch(child.attr):
            base = ast.unparse(child.value)
            # A class has parts of other classes: that both have such an attribute is a coincidence.
            is_own = child.attr in own and ("." not in base or base == SAME_CLASS.get(module.name))
            if base not in ("self", "cls", "super()") and not is_own and f"{base}.{child.attr}" not in FOREIGN:
                yield f"private: {module.name} {base}.{child.attr}"
        yield from _accesses(module, child, own)


@cache
def _declared(node: ast.ClassDef) -> frozenset[str]:
    """The private names of a class: methods, class attributes, slots, and attributes of self."""
    names = {child.name for child in node.body if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)}
    for child in ast.walk(node):
        if isinstance(child, ast.Attribute) and isinstance(child.value, ast.Name) and child.value.id in ("self", "cls"):
            names.add(child.attr)
        elif isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name):
            names.add(child.target.id)
    return frozenset(names)


def _classes(module: Module) -> Iterator[ast.ClassDef]:
    return (node for node in module.nodes if isinstance(node, ast.ClassDef))


def wrong_rooms() -> Iterator[str]:
    for package, rooms in ROOMS.items():
        level = {room: number for number, parts in enumerate(rooms) for room in parts}
        for module in modules():
            parts = module.name.split(".")
            if len(parts) < 3 or parts[1] != package:
                continue
            for name, _ in module.imports():
                other = name.split(".")
                if other[:2] != ["klamm", package] or len(other) < 3 or other[2] == parts[2]:
                    continue
                if level[other[2]] >= level[parts[2]]:
                    yield f"room: {module.name} imports {'.'.join(other[:3])}"


def shared_names() -> Iterator[str]:
    """Files of one name. An API and its messages share theirs, and a command of the CLI is called as its noun is."""
    places: dict[str, list[str]] = defaultdict(list)
    for module in modules():
        package, _, name = module.name.rpartition(".")
        is_message = package == "klamm.protocol.messages"
        if module.path.name not in ("__init__.py", "__main__.py") and package != "klamm.cli" and not is_message:
            places[name].append(module.name)
    for name, found in places.items():
        packages = MAY_SHARE_NAMES[name][0].split() if name in MAY_SHARE_NAMES else found[:1]
        if len(found) > 1 and found != [f"klamm.{package}.{name}" for package in packages]:
            yield f"name: {', '.join(found)}"


def unnamed_arguments() -> Iterator[str]:
    """Calls of a dataclass with many fields that name too few of them: the reader cannot know which is the seventh."""
    large = {
        f"{module.name}.{node.name}"
        for module in modules()
        for node in _classes(module)
        if any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)
        and sum("ClassVar" not in ast.unparse(part) for part in node.body if isinstance(part, ast.AnnAssign))
        > MAX_PARAMETERS
    }
    origin = {
        f"{module.name}.{name.rpartition('.')[2]}": name
        for module in modules()
        for name, _ in module.imports()
        if name.startswith("klamm.")
    }
    for module in modules():
        for node in module.nodes:
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or len(node.args) <= MAX_UNNAMED:
                continue
            name = f"{module.name}.{node.func.id}"
            while origin.get(name, name) != name:
                name = origin[name]
            if name in large:
                yield f"unnamed: {module.name} {node.func.id}"


def test_no_new_violation() -> None:
    new = sorted(violations() - set(STILL_TO_MEND))
    assert not new, "\n".join(new)


def test_the_list_only_shrinks() -> None:
    mended = sorted(set(STILL_TO_MEND) - violations())
    assert not mended, "remove from STILL_TO_MEND:\n" + "\n".join(mended)
    assert list(STILL_TO_MEND) == sorted(set(STILL_TO_MEND)), "STILL_TO_MEND is sorted, each entry once"


def test_every_room_has_a_level() -> None:
    for package, rooms in ROOMS.items():
        found = {parts[2] for m in modules() if len(parts := m.name.split(".")) > 2 and parts[1] == package}
        assert found <= frozenset().union(*rooms), package


def test_queues_between_threads_are_declared() -> None:
    """A queue whose only item is taken and put back is a lock by another name."""
    queue = re.compile(r"\bqueue\.(Simple|Lifo|Priority)?Queue\b|^from queue ", re.M)
    assert {m.name for m in modules() if queue.search(m.text)} == THREAD_QUEUES.keys() | MAY_LOCK.keys()


def test_each_meter_of_topics_is_written_in_one_module() -> None:
    """A count with two writers misses or repeats events when one of them changes; one without a writer stays 0."""
    (declaring,) = (module for module in modules() if module.name == "klamm.metrics.broker_topic")
    meters = {
        target.attr
        for node in declaring.nodes
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func) in ("meter", "registry.meter")
        for target in node.targets
        if isinstance(target, ast.Attribute)
    }
    assert len(meters) == 18
    writers: dict[str, set[str]] = {meter: set() for meter in meters}
    for module in modules():
        if module is declaring or module.name.startswith(("klamm.cli.", "klamm.sim.")):  # columns of the same names
            continue
        for node in module.nodes:
            if isinstance(node, ast.Attribute) and node.attr in meters:
                writers[node.attr].add(module.name)
    assert {meter: found for meter, found in writers.items() if len(found) != 1} == {}


CHANGES_OF_THE_METADATA = {
    "klamm.apis.update_metadata": {"update"},
    "klamm.server.missed_deletions": {"forget"},
}
"""The modules that change the metadata cache, and how; ARCHITECTURE.md names them."""


def test_two_modules_change_the_metadata_cache() -> None:
    """Simulated brokers are wired by other modules."""
    found: dict[str, set[str]] = defaultdict(set)
    for module in modules():
        if module.name.startswith("klamm.sim."):
            continue
        for node in module.nodes:
            if not isinstance(node, ast.Attribute) or node.attr not in ("update", "forget"):
                continue
            if ast.unparse(node.value).rpartition(".")[2] == "metadata":
                found[module.name].add(node.attr)
    assert found == CHANGES_OF_THE_METADATA


def test_authentications_are_counted_by_the_gate() -> None:
    writes = re.compile(r"\bcounts\.\w+ [+-]?= ")
    assert {m.name for m in modules() if m.name.startswith("klamm.network.") and writes.search(m.text)} == {
        "klamm.network.gate"
    }


COUNTS_OF_OTHERS = {
    "connection idle": "the time of a listener's ratio; a ratio is counted where its work is done",
    "connection traffic": "the bytes of a listener; a call per read and write costs more than the count",
    "gate counts": "the authentications of a listener; only the gate counts them",
    "request_channel memory_pool": "a part of the channel; a call per request costs more than the count",
    "request_handler idle": "the time of the pool's ratio; a ratio is counted where its work is done",
    "request_handler ratio": "the time of one of the pool's ratios",
    "request_metrics meter": "`count += 1` is the interface of meters",
    "request_recorder meter": "`count += 1` is the interface of meters",
    "sliced_work request": "the time of a request's steps; only its work in slices takes them",
}
"""Modules of `network/` that change a count of another object, the name of the object there, and why."""


def test_counts_are_changed_by_their_object() -> None:
    """A count that others change is wrong as soon as one of them forgets an end; methods come in pairs."""
    found = {
        f"{module.name.removeprefix('klamm.network.')} {ast.unparse(node.target.value).rpartition('.')[2].lstrip('_')}"
        for module in modules()
        if module.name.startswith("klamm.network.")
        for node in module.nodes
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Attribute)
        if ast.unparse(node.target.value) != "self"
    }
    assert found == COUNTS_OF_OTHERS.keys()


@pytest.mark.parametrize("name", ["threading.Barrier", "_thread.allocate_lock", "multiprocessing.Lock"])
def test_there_are_no_rarer_locks(name: str) -> None:
    assert not [module.place for module in modules() if name in module.text]

"""The habits that can be counted: sizes, locks, hidden time and chance, docstrings, words that do not belong."""

from __future__ import annotations

import ast
import re
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.source_tree import ROOT, Module, modules, text_files

MAX_FILE_LINES = 450
MAX_FUNCTION_LINES = 90
P95_FUNCTION_LINES = 35
MEDIAN_FUNCTION_LINES = 13

LOCKS = {"asyncio.Lock", "asyncio.Semaphore", "asyncio.Condition", "threading.Lock", "threading.RLock"}
LOCKS |= {"threading.Condition", "threading.Semaphore", "asyncio.BoundedSemaphore", "threading.BoundedSemaphore"}
LOCKS |= {"asyncio.Queue", "asyncio.LifoQueue", "asyncio.PriorityQueue"}
"""A queue whose only item is taken and put back is a lock by another name; `THREAD_QUEUES` has those of threads."""
MAY_LOCK = {
    "klamm.zk.client.socket_connection": "`_free` holds the socket; only the thread that took it writes, as with a lock"
}
"""Modules with a lock, also one by another name, and what it guards."""

HIDDEN_INPUT = re.compile(
    r"(time\.(time|time_ns|monotonic|monotonic_ns|perf_counter)|random\.\w+|uuid4|uuid\.uuid4|datetime\.now|os\.urandom)"
)
PURE = (
    *(
        "klamm.controller",
        "klamm.coordinator",
        "klamm.metadata",
        "klamm.zk.model.tree",
        "klamm.protocol",
        "klamm.replica",
    ),
    *("klamm.apis", "klamm.broker", "klamm.log", "klamm.network"),
)
SHELL = frozenset({"klamm.controller.event_manager", "klamm.controller.channel_manager"})

UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK|WIP|to be done|placeholder|stub)\b", re.I)
MACHINE_PATHS = re.compile(r"(?<![\w.])/(work|home|root|Users)/[a-z]|/tmp/plan")


def functions() -> list[tuple[int, str]]:
    return [
        ((node.end_lineno or node.lineno) - node.lineno + 1, f"{module.place}:{node.lineno} {node.name}")
        for module in modules()
        for node in module.functions()
    ]


def test_files_are_short() -> None:
    long = [f"{m.place}: {count}" for m in modules() if (count := m.text.count("\n")) > MAX_FILE_LINES]
    assert not long, "\n".join(long)


def test_functions_are_short() -> None:
    sizes = sorted(functions())
    lines = [size for size, _ in sizes]
    assert statistics.median(lines) <= MEDIAN_FUNCTION_LINES
    assert lines[int(len(lines) * 0.95)] <= P95_FUNCTION_LINES
    longest = [f"{where}: {size} lines" for size, where in sizes if size > MAX_FUNCTION_LINES]
    assert not longest, "\n".join(longest)


def test_nothing_is_locked() -> None:
    wrong = [
        f"{module.place}:{line}: {name}"
        for module in modules()
        if module.name not in MAY_LOCK
        for name, line in module.uses(LOCKS)
    ]
    wrong += [
        f"{module.place}:{line}: {name}"
        for module in modules()
        for name, line in module.imports()
        if name in LOCKS and module.name not in MAY_LOCK
    ]
    assert not wrong, "\n".join(wrong)


def test_wait_for_is_not_used() -> None:
    """It can swallow a cancellation (Python 3.11); `asyncio.timeout` does not."""
    wrong = [f"{m.place}:{line}" for m in modules() for _, line in m.uses({"asyncio.wait_for"})]
    wrong += [f"{m.place}:{line}" for m in modules() for name, line in m.imports() if name == "asyncio.wait_for"]
    assert not wrong, "\n".join(wrong)


def test_tasks_have_names() -> None:
    """Dumps of running tasks and warnings of slow callbacks show the name. The simulator names its own by coroutine."""
    calls = [
        (module, node)
        for module in modules()
        if not module.name.startswith("klamm.sim.") and "create_task" in module.text
        for node in module.nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "create_task"
    ]
    assert calls
    wrong = [
        f"{module.place}:{node.lineno}" for module, node in calls if "name" not in {key.arg for key in node.keywords}
    ]
    assert not wrong, "\n".join(wrong)


OTHER_WAYS_TO_WAIT = {"add_done_callback", "call_at", "call_later", "call_soon", "follow", "run_in_executor"}
OTHER_WAYS_TO_WAIT |= {"call_soon_threadsafe", "run_coroutine_threadsafe", "to_thread"}
WAITS_OF_ASYNCIO = {"asyncio.ensure_future", "asyncio.gather", "asyncio.sleep", "asyncio.timeout", "asyncio.wait"}
TASKS = {"klamm.apis.zookeeper_waits"}
"""Modules that start coroutines below the API layer: changes and reads of ZooKeeper."""


def api_files() -> list[Module]:
    return [module for module in modules() if module.name.startswith("klamm.apis.")]


def test_handlers_wait_in_the_declared_form() -> None:
    """`apis/api_declaration.py` describes it: futures of `klamm.waiting`, also for steps, and no coroutine."""
    wrong = [
        f"{module.place}:{node.lineno}"
        for module in api_files()
        for node in module.nodes
        if isinstance(node, ast.AsyncFunctionDef | ast.Await)
        or (isinstance(node, ast.Attribute) and node.attr in OTHER_WAYS_TO_WAIT)
        or (isinstance(node, ast.Attribute) and node.attr == "create_task" and module.name not in TASKS)
    ]
    wrong += [
        f"{module.place}:{line}: {name}" for module in api_files() for name, line in module.uses(WAITS_OF_ASYNCIO)
    ]
    assert not wrong, "\n".join(wrong)


def test_handlers_wait_in_one_way() -> None:
    """`on` turns a Deferred of a coordinator into a result or a future; `waiting.after` continues with it."""
    handlers = api_files()
    wrong = [
        f"{module.place}:{line}: {name}"
        for module in handlers
        for name, line in module.imports()
        if name.startswith("klamm.coordinator.deferred")
    ]
    wrong += [
        f"{module.place}:{node.lineno}: {ast.unparse(node.func)}"
        for module in handlers
        for node in module.nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("map", "then")
    ]
    assert not wrong, "\n".join(wrong)


PATIENCE = "klamm.client.patience"
OTHER_TIMEOUTS = {
    "klamm.cli.demo_spark.TIMEOUT_S": "the demo's pipeline, a process with its own JVM",
    "klamm.cli.pipeline.STOP_TIMEOUT_S": "the default of an option: a pipeline finishes its batch",
    "klamm.controller.controller_runner.MIN_TIMEOUT_MS": "the least time that a broker gives a client's request",
    "klamm.coordinator.rebalance.NEW_MEMBER_JOIN_TIMEOUT_MS": "a rule of groups: how long a broker keeps a new member",
    "klamm.metrics.http.REQUEST_TIMEOUT_S": "a server's limit on scrapers",
    "klamm.security.sasl.token_source._TIMEOUT_S": "an issuer of tokens, which is not part of the cluster",
    "klamm.server.sasl_mechanisms.TIMEOUT_S": "an issuer of keys, which is not part of the cluster",
    "klamm.spark.cluster.standalone.START_TIMEOUT_S": "processes of Spark",
    "klamm.spark.cluster.standalone.STOP_TIMEOUT_S": "processes of Spark",
    "klamm.spark.sink.state_topic.CHANGE_TIMEOUT_MS": "the timeout of a transaction, which its coordinator applies",
    "klamm.spark.sink.write_options.TIMEOUT_MS": "the timeout of a transaction, which its coordinator applies",
    "klamm.spark.sink.write_options._MIN_TIMEOUT_MS": "the least value of an option",
    "klamm.zk.server.admission.IDLE_TIMEOUT_MS": "a server's limit on clients without a session",
}
"""Timeouts that are not waits of a client for its cluster, and what they are."""
OTHER_RETRIES = {
    "klamm.controller.controller_runner.LONGEST_REGISTRATION_RETRY_S": "ZooKeeper",
    "klamm.controller.controller_runner.REGISTRATION_RETRY_S": "ZooKeeper",
    "klamm.controller.failover.CLAIM_RETRY_MS": "ZooKeeper",
    "klamm.controller.failover.UNREADABLE_RETRY_MS": "ZooKeeper",
    "klamm.controller.topic_store.DELETE_RETRIES": "ZooKeeper",
    "klamm.coordinator.transaction.transaction_completions.APPEND_RETRY_MS": "an append to the broker's own log",
    "klamm.coordinator.transaction.transaction_markers.RETRIES_PER_TURN": "a limit on the work of one turn, not a wait",
    "klamm.log.background._RETRY_SECONDS": "file descriptors of this process",
    "klamm.metadata.missed_deletions.RETRY_S": "ZooKeeper",
    "klamm.replica.controller_guard.RETRY_S": "ZooKeeper",
    "klamm.replica.zk_isr_manager.RETRY_MS": "ZooKeeper",
    "klamm.server.log_dir_notes.RETRY_S": "ZooKeeper",
    "klamm.server.loss_notes.RETRY_S": "ZooKeeper",
    "klamm.server.registration.RETRY_S": "ZooKeeper",
    "klamm.server.sasl_mechanisms.RETRY_S": "an issuer of keys, which is not part of the cluster",
    "klamm.zk.server.snapshot_process.COMPACTION_RETRY_MS": "a disk of the embedded ZooKeeper",
}
"""Retries that ask no broker, and what they repeat."""
OTHER_WAITS = {
    "klamm.apis.alter_partition._PAUSE_MS": "a throttle time that a broker asks of leaders",
    "klamm.apis.fetch._MAX_WAIT_MS": "a broker's limit on the wait that a client may ask for",
    "klamm.apis.missing_topics.WAIT_MS": "a broker's wait for its controller in a request that the client repeats",
    "klamm.apis.zookeeper_waits.CHANGE_WAIT_MS": "ZooKeeper",
    "klamm.apis.zookeeper_waits.READ_WAIT_MS": "ZooKeeper",
    "klamm.cli.up_refusals.ZOOKEEPER_WAIT_S": "ZooKeeper",
    "klamm.controller.controller.FIRST_PAUSE_S": "the election of a controller, in ZooKeeper",
    "klamm.controller.controller.LONGEST_PAUSE_S": "the election of a controller, in ZooKeeper",
    "klamm.log.unwritten_batches.MAX_WAIT_S": "how long a broker keeps a note of a producer",
    "klamm.sockets.accept_loop.PAUSE_S": "file descriptors of this process",
    "klamm.replica.producer_ids.MAX_WAIT_S": "a broker's wait for its controller in a request that the client repeats",
    "klamm.replica.replication_quota._LONGEST_WAIT_S": "a quota of the user",
    "klamm.replica.replication_quota._SHORTEST_WAIT_S": "a quota of the user",
    "klamm.security.failure_budget.MAX_WAIT_S": "how long a broker lets a peer wait that has failed to authenticate",
    "klamm.server.log_topic.PAUSE_S": "the least time between two appends to the broker's own log",
    "klamm.spark.pipeline.state._WAIT_S": "a lock of a file",
    "klamm.spark.sink.writer._WAIT_S": "how often a flush looks for failures; delivery.timeout.ms is its deadline",
    "klamm.spark.source.direct_files._LIST_WAIT_S": "a directory of this machine",
    "klamm.spark.source.stream_reader._FIRST_WAIT_S": "how often the end of a log is read; pollMs is its deadline",
    "klamm.spark.source.stream_reader._LONGEST_WAIT_S": "how often the end of a log is read; pollMs is its deadline",
}
"""Waits and pauses that are not those of a client for its cluster, and what they are."""
BOUNDS = {"deadline_ms", "backoff_ms", "request_ms", "first_contact_ms", "longest_backoff_ms"}


def test_patience_is_decided_in_one_place() -> None:
    """Others choose a line of that module, or replace its deadline by a value of the user."""
    wrong = [
        f"{module.place}:{node.lineno}: {ast.unparse(node)}"
        for module in modules()
        if module.name != PATIENCE
        for node in module.nodes
        if isinstance(node, ast.Call)
        if _called(node) in ("Patience", "Polling") or any(map(_is_literal_bound, node.keywords))
    ]
    assert not wrong, "\n".join(wrong)


def _called(node: ast.Call) -> str:
    """The last part of the name of what is called."""
    return ast.unparse(node.func).rpartition(".")[2]


def _is_literal_bound(keyword: ast.keyword) -> bool:
    return keyword.arg in BOUNDS and isinstance(keyword.value, ast.Constant)


def test_timeouts_are_lines_of_patience() -> None:
    """A number that is called a timeout is a patience, or has another reason to be where it is."""
    assert _constants_outside_patience(r"TIMEOUT_(S|MS)$") == OTHER_TIMEOUTS.keys()


def test_retries_are_lines_of_patience() -> None:
    """A number that is called a retry or a back-off is a patience, or no broker is asked."""
    assert _constants_outside_patience(r"RETRY|RETRIES|BACK_?OFF") == OTHER_RETRIES.keys()


def test_waits_are_lines_of_patience() -> None:
    """A number that is called a wait or a pause is a patience, or has another reason to be where it is."""
    assert _constants_outside_patience(r"WAIT_(S|MS)$|PAUSE_") == OTHER_WAITS.keys()


def _constants_outside_patience(pattern: str) -> set[str]:
    return {
        f"{module.name}.{name}"
        for module in modules()
        if module.name != PATIENCE and not module.name.startswith("klamm.sim.")  # virtual time
        for name in _numeric_constants(module)
        if re.search(pattern, name)
    }


def _numeric_constants(module: Module) -> Iterator[str]:
    """The constants of a module or a class that a number, or arithmetic on numbers, defines."""
    for node in module.nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant | ast.BinOp):
            parts = [part for part in ast.walk(node.value) if isinstance(part, ast.expr)]
            if all(isinstance(part, ast.Constant | ast.BinOp | ast.UnaryOp) for part in parts):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                yield from (target.id for target in targets if isinstance(target, ast.Name) and target.id.isupper())


def test_clients_measure_deadlines_with_deadline() -> None:
    """A loop that compares clocks itself has a deadline that nobody finds; re-authentication is not a deadline."""
    wrong = [
        f"{module.place}:{line}"
        for module in modules()
        if module.name.startswith("klamm.client.") and module.name != "klamm.client.blocking_connection"
        for _, line in module.uses({"time.monotonic", "time.perf_counter"})
    ]
    assert not wrong, "\n".join(wrong)


def test_the_core_has_no_hidden_time_or_chance() -> None:
    wrong = [
        f"{module.place}:{node.lineno}: {ast.unparse(node)}"
        for module in modules()
        if module.name.startswith(PURE) and module.name not in SHELL
        for node in module.nodes
        if isinstance(node, ast.Call) and HIDDEN_INPUT.fullmatch(ast.unparse(node.func))
    ]
    assert not wrong, "\n".join(wrong)


def test_tasks_are_not_taken_from_sets_one_by_one() -> None:
    """Sets of tasks have the order of their addresses: a simulated run would not repeat itself. Dicts keep theirs."""
    wrong = [
        f"{module.place}: {name}"
        for module in modules()
        for name in re.findall(r"self\.(\w+): (?:dict\[\w+, )?set\[asyncio\.(?:Task|Future)", module.text)
        if re.search(rf"(\bin |\[\*|list\()self\.{name}\b", module.text)
    ]
    assert not wrong, "\n".join(wrong)


def api_modules() -> list[Module]:
    return [m for m in modules() if m.name.startswith("klamm.apis.") and re.search(r"^API\b.*= Api\(", m.text, re.M)]


@pytest.mark.parametrize("module", api_modules(), ids=lambda module: module.name.rpartition(".")[2])
def test_an_apis_docstring_names_its_versions(module: Module) -> None:
    declared = re.search(r"versions=\((\d+), (\d+)\)", module.text)
    assert declared is not None, "declare the versions as versions=(first, last)"
    first, last = declared.groups()
    wanted = f"{first}-{last}" if first != last else f"v{first}"
    assert wanted in (ast.get_docstring(module.tree) or ""), f"the docstring does not say {wanted}"


def test_every_module_says_what_it_is() -> None:
    silent = [m.place for m in modules() if m.text.strip() and not ast.get_docstring(m.tree)]
    assert not silent, "\n".join(silent)


@pytest.mark.parametrize("pattern", [UNFINISHED, MACHINE_PATHS], ids=["unfinished", "machine paths"])
def test_words_that_do_not_belong(pattern: re.Pattern[str]) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}"
        for path in text_files()
        if path != Path(__file__)
        if path.suffix in (".py", ".md", ".toml", ".sh", ".js", ".java", ".txt", "")
        and "node_modules" not in path.parts
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]
    assert not wrong, "\n".join(wrong)

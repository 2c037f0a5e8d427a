"""Sends the same requests to a klamm broker and to a broker of Apache Kafka and compares the error codes."""

from __future__ import annotations

import re
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

from compat.mixed_cluster.cluster import Kind, MixedCluster
from compat.wire_probe import configs, stored, transactions
from compat.wire_probe.requests import BATCH, rows
from compat.wire_probe.transactions import Case, Preparation

from klamm import apis
from klamm.apis.api_declaration import Api
from klamm.client.blocking_connection import ask_once
from klamm.errors import KlammError, ProtocolError
from klamm.local.ports import LOOPBACK
from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from klamm.protocol.messages.describe_configs import DescribeConfigsRequest
from klamm.protocol.messages.produce import ProduceRequest
from klamm.protocol.schema import plan
from klamm.protocol.wire import Message, encode_bytes
from tests.support.messages import build, codes

TIMEOUT_S: Final = 30.0
SETTINGS: Final = {
    "offsets.topic.replication.factor": 1,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "auto.create.topics.enable": "false",
    "log.retention.hours": 100,
}
STORED: Final = "stored batches"
SHOWN: Final = "shown settings"
Codes = list[tuple[str, int]] | str


class Peer:
    """One broker and the API versions that it and klamm have in common."""

    def __init__(self, kind: Kind) -> None:
        self._cluster = MixedCluster({1: kind}, configs=SETTINGS)

    def __enter__(self) -> Peer:
        self._cluster.__enter__()
        self._cluster.start(1)
        self.address = (LOOPBACK, int(self._cluster.bootstrap_servers.split(":")[1]))
        self._cluster.admin.create_topic("ta", 2, 1, {})
        self._cluster.admin.create_topic("tc", 1, 1, {"cleanup.policy": "compact"})
        self._cluster.admin.create_topic("td", 1, 1, {})
        for name, kind in stored.TOPICS.items():
            configs = {"message.timestamp.type": kind, "retention.ms": -1}
            self._cluster.admin.create_topic(name, len(stored.odd_batches()), 1, configs)
        record = {"name": "ta", "partition_data": [{"index": 0, "records": BATCH}]}
        first = {"acks": -1, "timeout_ms": 9000, "transactional_id": None, "topic_data": [record]}
        self._cluster.wait(lambda: self._has_worked("Produce", first), "the first record was not accepted")
        for key_type in (0, 1):
            fields = {"key": "g", "key_type": key_type}
            self._cluster.wait(partial(self._has_worked, "FindCoordinator", fields, 1), "there is no coordinator")
        partition = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
        commit = {
            "group_id": "g",
            "generation_id_or_member_epoch": -1,
            "topics": [{"name": "ta", "partitions": [partition]}],
        }
        self._cluster.wait(lambda: self._has_worked("OffsetCommit", commit, 3), "the first offset was not committed")
        return self

    def __exit__(self, *error: Any) -> None:
        self._cluster.close()

    def versions(self) -> dict[int, range]:
        request = ApiVersionsRequest(client_software_name="probe", client_software_version="1")
        found = ask_once(self.address, request, 0, ApiVersionsResponse, TIMEOUT_S)
        return {api.api_key: range(api.min_version, api.max_version + 1) for api in found.api_keys}

    def ask(self, api: Api[Any, Any], request: Message, version: int) -> Codes:
        if isinstance(request, ProduceRequest) and request.acks == 0:
            return "no answer"
        try:
            answer = ask_once(self.address, request, version, api.response, TIMEOUT_S)
        except TimeoutError:
            return "no answer"
        except OSError:
            return "closed"
        except KlammError as error:
            return str(error)
        return sorted(codes(plan(api.response, version), answer))

    def _has_worked(self, name: str, fields: dict[str, Any], version: int = 7) -> bool:
        api = API_BY_NAME[name]
        found = self.ask(api, build(plan(api.request, version), fields), version)
        return not isinstance(found, str) and all(code == 0 for _, code in found)


class Known:
    """The lines of known-differences.txt, and which of them were needed."""

    def __init__(self) -> None:
        lines = (Path(__file__).parent / "known-differences.txt").read_text().splitlines()
        rows = [line.split(" | ") for line in lines if line and not line.startswith("#")]
        self._patterns = [(api.strip(), re.compile(pattern.strip().replace(r"\|", "|"))) for api, pattern, _ in rows]
        self._needed: set[tuple[str, str]] = set()

    def has(self, api: str, line: str) -> bool:
        found = [pattern for name, pattern in self._patterns if name == api and pattern.search(line)]
        self._needed |= {(api, pattern.pattern) for pattern in found}
        return bool(found)

    def unneeded(self) -> list[str]:
        return [f"{name} | {p.pattern}" for name, p in self._patterns if (name, p.pattern) not in self._needed]


API_BY_NAME: Final = {api.name: api for api in apis.ALL}


def _ask_case(peer: Peer, preparation: Preparation, case: Case, api: Api[Any, Any], version: int) -> Codes:
    """The codes without the names around them, which contain the transactional id."""
    fields = case.fields(preparation.producer(case.state))
    found = peer.ask(api, build(plan(api.request, version), fields), version)
    return found if isinstance(found, str) else [("", code) for _, code in found]


def run(show_known: bool = False) -> int:
    """Prints a line per API, and one per request with another answer; with `show_known` also those of the list."""
    with ThreadPoolExecutor(2) as pool, Peer("klamm") as klamm, Peer("kafka") as kafka:
        ours, theirs = klamm.versions(), kafka.versions()
        count: dict[str, int] = {}
        wrong: dict[str, list[str]] = {}
        for name, what, fields in rows():
            api = API_BY_NAME[name]
            for version in ours[api.key]:
                if version not in theirs.get(api.key, ()):
                    continue
                try:
                    request = build(plan(api.request, version), fields)
                    encode_bytes(request, version)
                except (ProtocolError, TypeError, ValueError):
                    continue  # this version cannot say it
                one, two = pool.map(lambda peer: peer.ask(api, request, version), (klamm, kafka))  # noqa: B023
                count[name] = count.get(name, 0) + 1
                if one != two:
                    wrong.setdefault(name, []).append(f"v{version} {what}: klamm {one}, kafka {two}")
        peers = [(peer, Preparation(peer.address)) for peer in (klamm, kafka)]
        for case in transactions.cases():
            api = API_BY_NAME[case.api]
            for version in sorted({*ours[api.key]} & {*theirs.get(api.key, ())}):
                one, two = pool.map(lambda it: _ask_case(it[0], it[1], case, api, version), peers)  # noqa: B023
                count[case.api] = count.get(case.api, 0) + 1
                if one != two:
                    wrong.setdefault(case.api, []).append(f"v{version} {case.what}: klamm {one}, kafka {two}")
        both = [
            version for version in ours[DescribeConfigsRequest.KEY] if version in theirs[DescribeConfigsRequest.KEY]
        ]
        count[SHOWN] = len(configs.RESOURCES) * len(both)
        wrong[SHOWN] = list(configs.differences(klamm.address, kafka.address, both))
        batches = stored.odd_batches()
        count[STORED] = len(stored.TOPICS) * len(batches)
        wrong[STORED] = stored.differences(klamm.address, kafka.address, batches)
    known = Known()
    for name in count:
        lines = [line for line in wrong.get(name, []) if not known.has(name, line)]
        print(f"not ok {name}: {len(lines)} of {count[name]} requests differ" if lines else f"ok {name}", flush=True)
        for line in wrong.get(name, []) if show_known else lines:
            print(f"  {name} {line}", flush=True)
    for line in known.unneeded():  # some depend on how far a deletion or a start has come
        print(f"no difference this time: {line}", flush=True)
    print(f"{sum(count.values())} requests", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(run(show_known="--all" in sys.argv[1:]))

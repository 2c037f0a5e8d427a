"""Asking the controller for leader elections."""

from __future__ import annotations

from klamm.cli.client import TIMEOUT_S
from klamm.cli.controller import ControllerClient, partitions_of, reason
from klamm.cli.output import fail, note, say, table
from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse, TopicPartitions


def elect_leaders(
    servers: str, topic: str | None, partition: int | None, *, unclean: bool, timeout_s: float, as_json: bool = False
) -> None:
    """Report the results; fail if an election failed."""
    asked = None
    if topic is not None:
        wanted = [partition] if partition is not None else sorted(partitions_of(servers, topic))
        asked = [TopicPartitions(topic=topic, partitions=wanted)]
    request = ElectLeadersRequest(
        election_type=1 if unclean else 0, topic_partitions=asked, timeout_ms=int(timeout_s * 1000)
    )
    controller = ControllerClient(servers, timeout_s, answer_s=timeout_s + TIMEOUT_S)
    reply = controller.ask(request, 2, ElectLeadersResponse, _is_not_controller).answer
    if reply.error_code:
        fail(reason(reply.error_code, None))
    if as_json:
        _print_json(reply)
        return
    kind = "an unclean election" if unclean else "the election of its preferred replica"
    problems: list[str] = []
    for answer in reply.replica_election_results:
        for each in answer.partition_result:
            tp = TopicPartition(answer.topic, each.partition_id)
            if each.error_code == ErrorCode.NONE:
                say(f"Partition {tp} has a new leader.")
            elif each.error_code == ErrorCode.ELECTION_NOT_NEEDED:
                note(f"Partition {tp} needs no election.")
            else:
                problems.append(f"Partition {tp}: {kind} failed: {reason(each.error_code, each.error_message)}")
    if problems:
        fail("\n".join(problems))
    if not any(answer.partition_result for answer in reply.replica_election_results):
        note("No partition needs an election.")


def _print_json(reply: ElectLeadersResponse) -> None:
    rows = [
        (answer.topic, each.partition_id, ErrorCode.of(each.error_code).name, each.error_message)
        for answer in reply.replica_election_results
        for each in answer.partition_result
    ]
    table(("TOPIC", "PARTITION", "ERROR", "MESSAGE"), rows, as_json=True)
    done = (ErrorCode.NONE.name, ErrorCode.ELECTION_NOT_NEEDED.name)
    if failed := sum(error not in done for _, _, error, _ in rows):
        fail(f"{failed} of {len(rows)} elections failed.")


def _is_not_controller(reply: ElectLeadersResponse) -> bool:
    """Apache Kafka's brokers report this error per partition, not for the request."""
    codes = {each.error_code for answer in reply.replica_election_results for each in answer.partition_result}
    return ErrorCode.NOT_CONTROLLER in {reply.error_code, *codes}

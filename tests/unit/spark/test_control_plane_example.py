"""The example that reads the control log names fields that the brokers write."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from klamm.spark.pipeline.load_file import load

ROOT = Path(__file__).parents[3]


def documented() -> list[dict[str, Any]]:
    """The records of docs/reference/control-log.md, which tests/cluster/test_control_log.py compares with real ones."""
    text = (ROOT / "docs" / "reference" / "control-log.md").read_text()
    return [json.loads(block) for block in re.findall(r"```json\n(.*?)```", text, re.DOTALL)]


def test_its_schema_and_kinds_are_those_of_the_control_log() -> None:
    spec = load(ROOT / "examples" / "pipelines" / "control_plane.yaml", {})
    records = documented()
    (source,) = spec.sources
    assert source.topic == "__klamm_control_log" and source.schema is not None
    top_level = re.sub(r"<[^>]*(<[^>]*>)?[^>]*>", "", source.schema)
    columns = {column.split()[0] for column in top_level.split(",")}
    assert columns <= {field for record in records for field in record}
    kinds = {kind for view in spec.views for kind in re.findall(r"'(\w+_\w+|election)'", view.sql or "")}
    assert kinds == {
        "election",
        "leader_change",
        "isr_change",
        "metadata_applied",
        "request_sent",
        "request_acknowledged",
    }
    assert kinds <= {record["kind"] for record in records}

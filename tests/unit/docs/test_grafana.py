"""Brokers export every metric and label that the Grafana dashboard and the alert rules name."""

from __future__ import annotations

import json
import re

import yaml

from docgen.metric_table import METRICS
from docgen.metrics import exported_names
from tests.support.source_tree import ROOT

FOLDER = ROOT / "docs" / "grafana"
NAME = re.compile(r"\b(?:kafka|klamm)_[a-z0-9_]+")


def expressions() -> list[str]:
    dashboard = json.loads((FOLDER / "dashboard.json").read_text())
    found = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    rules = yaml.safe_load((FOLDER / "alerts.yml").read_text())
    return found + [rule["expr"] for group in rules["groups"] for rule in group["rules"]]


def test_every_metric_exists() -> None:
    exported = {name for metric in METRICS for name in exported_names(metric)}
    named = {name for expression in expressions() for name in NAME.findall(expression)}
    assert len(named) > 30
    assert not named - exported


def test_panels_do_not_overlap_and_have_their_own_ids() -> None:
    panels = json.loads((FOLDER / "dashboard.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        covered = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not covered & cells and max(x for x, _ in covered) < 24, panel["title"]
        cells |= covered


def test_every_alert_says_what_to_do() -> None:
    rules = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"][0]["rules"]
    for rule in rules:
        assert rule["annotations"]["summary"] and rule["annotations"]["description"].endswith(".")
        assert rule["labels"]["severity"] in ("critical", "warning", "info")

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
SELECTED = re.compile(rf"({NAME.pattern})\{{([^}}]*)\}}")
MATCHER = re.compile(r'\s*(\w+)\s*(?:=~|!~|!=|=)\s*"[^"]*"\s*')
GROUPED = re.compile(r"\bby\s*\(([^)]*)\)")
SHOWN = re.compile(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}")
OF_PROMETHEUS = {"instance", "job"}
"""The labels that Prometheus itself adds to every metric of a broker."""


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


def described_labels() -> dict[str, set[str]]:
    """The labels of every exported name. The first name of a histogram or a timer also has a quantile."""
    found: dict[str, set[str]] = {}
    for metric in METRICS:
        for name in exported_names(metric):
            found.setdefault(name, set(OF_PROMETHEUS)).update(metric.labels)
        if metric.kind in ("histogram", "timer"):
            found[exported_names(metric)[0]].add("quantile")
    return found


def unknown_labels(expression: str, shown: str = "") -> set[str]:
    """The labels that an expression selects, groups by or shows, and that its metrics or its groups do not have."""
    described = described_labels()
    found: set[str] = set()
    for name, matchers in SELECTED.findall(expression):
        chosen = [MATCHER.fullmatch(matcher) for matcher in matchers.split(",")]
        assert all(chosen), expression
        found |= {matcher[1] for matcher in chosen if matcher is not None} - described[name]
    common = set.intersection(*(described[name] for name in NAME.findall(expression)))
    groups = [{label.strip() for label in listed.split(",")} for listed in GROUPED.findall(expression)]
    for group in groups:
        found |= group - common
    is_one = not groups and re.search(r"\b(?:sum|max|min|avg)\s*\(", expression) is not None
    left = set() if is_one else set.intersection(common, *groups)
    return found | (set(SHOWN.findall(shown)) - left)


def test_every_label_exists() -> None:
    """In selections and groups, in the legends of the panels, and in the sentences of the alerts."""
    dashboard = json.loads((FOLDER / "dashboard.json").read_text())
    targets = [target for panel in dashboard["panels"] for target in panel.get("targets", ())]
    shown = {target["expr"]: target.get("legendFormat", "") for target in targets}
    rules = yaml.safe_load((FOLDER / "alerts.yml").read_text())
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        shown[rule["expr"]] = " ".join(rule["annotations"].values())
    assert set(shown) == set(expressions())
    assert sum(bool(GROUPED.search(it)) for it in shown) > 10 and sum(bool(SELECTED.search(it)) for it in shown) > 5
    wrong = {expression: labels for expression, text in shown.items() if (labels := unknown_labels(expression, text))}
    assert not wrong


def test_a_wrong_label_is_found() -> None:
    queue, time = "kafka_controller_controllerchannelmanager_queuesize", "kafka_network_requestmetrics_totaltimems"
    assert unknown_labels(f"max by (broker) ({queue})") == {"broker"}
    assert unknown_labels(f'{time}{{quantile="0.99",api="Fetch"}}') == {"api"}
    assert unknown_labels(f'{time}_count{{quantile="0.99"}}') == {"quantile"}
    assert unknown_labels(f"max by (broker_id) ({queue})", "{{broker_id}} {{instance}}") == {"instance"}
    assert unknown_labels(f"sum({queue})", "{{ $labels.broker_id }}") == {"broker_id"}
    assert not unknown_labels(f'max by (request) ({time}{{quantile!="0.5"}})', "{{request}}: {{ $value }}")


def test_panels_do_not_overlap_and_have_their_own_ids() -> None:
    panels = json.loads((FOLDER / "dashboard.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        covered = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not covered & cells and max(x for x, _ in covered) < 24, panel["title"]
        cells |= covered


def test_every_alert_names_a_remedy() -> None:
    rules = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"][0]["rules"]
    for rule in rules:
        assert rule["annotations"]["summary"] and rule["annotations"]["description"].endswith(".")
        assert rule["labels"]["severity"] in ("critical", "warning", "info")

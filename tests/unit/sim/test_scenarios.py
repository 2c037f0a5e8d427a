"""Every step of every guided scenario happens, in the order in which it is explained."""

from __future__ import annotations

import json

import pytest

from docgen.article_leads import ARTICLES
from klamm.sim.scenario import Scenario, locate
from klamm.sim.scenarios import SCENARIOS, places, scenarios
from klamm.sim.scripted import ScriptedRun


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_every_step_happens(scenario: Scenario) -> None:
    run = ScriptedRun(scenario.plan)
    run.run()
    assert run.error is None
    found = locate(scenario, [json.loads(line) for line in run.recording.lines])
    missing = [step.title for step, place in zip(scenario.steps, found, strict=True) if place is None]
    assert not missing
    assert json.loads(places(scenario.name)) == found


def test_there_are_ten_and_each_leads_to_an_article() -> None:
    assert len(SCENARIOS) >= 10
    headings = {anchor(article.title) for article in ARTICLES}
    assert {scenario.subject for scenario in SCENARIOS} <= headings
    assert [entry["name"] for entry in json.loads(scenarios())] == [scenario.name for scenario in SCENARIOS]


def anchor(title: str) -> str:
    """The id that MkDocs gives a heading."""
    kept = "".join(letter for letter in title.lower() if letter.isalnum() or letter in " -_")
    return "-".join(kept.split())


def test_a_step_is_one_short_idea() -> None:
    for scenario in SCENARIOS:
        for step in scenario.steps:
            assert len(step.text) < 300, step.title

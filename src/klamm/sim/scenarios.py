"""The guided scenarios of the viewer, in their order."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, Final

from klamm.sim.scenario import Scenario, locate
from klamm.sim.scenarios_first import BIRTH, DEATH, ONE_QUEUE, SLOW, START, ZOMBIE
from klamm.sim.scenarios_more import BOUNCE, DELETION, ISR, SHUTDOWN, STALE_CACHE
from klamm.sim.scripted import Action, ScriptedRun

SCENARIOS: Final = (
    START,
    BIRTH,
    ONE_QUEUE,
    DEATH,
    SLOW,
    STALE_CACHE,
    ZOMBIE,
    BOUNCE,
    SHUTDOWN,
    ISR,
    DELETION,
)


def _address(action: Action) -> str:
    return ".".join((str(action.at_ms), action.name, *action.arguments))


def scenarios() -> str:
    """Return the titles and plans of all scenarios as JSON, for the viewer's menu."""
    return json.dumps([_described(scenario) for scenario in SCENARIOS])


def _described(scenario: Scenario) -> dict[str, Any]:
    plan = {**asdict(scenario.plan), "actions": [_address(action) for action in scenario.plan.actions]}
    return {**asdict(scenario), "plan": plan}


def places(name: str) -> str:
    """Return the index of each step's record in the run of a scenario, as JSON."""
    scenario = next(scenario for scenario in SCENARIOS if scenario.name == name)
    run = ScriptedRun(scenario.plan)
    run.run()
    return json.dumps(locate(scenario, [json.loads(line) for line in run.recording.lines]))

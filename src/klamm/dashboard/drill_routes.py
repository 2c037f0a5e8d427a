"""The routes of the fault drill. They exist only where the process of the viewer owns the cluster."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from klamm.dashboard.change_guard import ChangeGuard, read_object
from klamm.dashboard.cluster_routes import answered, number
from klamm.dashboard.fault_drill import FaultDrill


def drill_routes(drill: FaultDrill, guard: ChangeGuard) -> list[Route]:
    async def state(request: Request) -> Any:
        return await drill.state()

    async def perform(request: Request) -> Any:
        guard.check(request)
        given = await read_object(request)
        broker = given.get("broker")
        return await drill.perform(str(given.get("action")), None if broker is None else number(broker, "broker", 1))

    return [
        Route("/api/drill", answered(state), methods=["GET"]),
        Route("/api/drill", answered(perform), methods=["POST"]),
    ]

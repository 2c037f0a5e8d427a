"""`klamm simulate`: the control plane under a seeded simulator with faults."""

from __future__ import annotations

from typing import Annotated

import typer

from klamm.cli.output import fail


def simulate(
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="How many seeds, from the first one on.")] = 100,
    seed: Annotated[int | None, typer.Option("--seed", help="Only this seed, told in full.")] = None,
) -> None:
    """Run the controller in simulated clusters that crash, pause and lose messages; a seed repeats its run exactly."""
    fail(f"No simulator for {seed if seed is not None else seeds}.")

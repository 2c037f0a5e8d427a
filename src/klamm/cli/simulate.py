"""`klamm simulate`: the control plane, or whole brokers, under a seeded simulator with faults."""

from __future__ import annotations

from typing import Annotated

import typer


def simulate(
    seeds: Annotated[int, typer.Option("--seeds", "-n", min=1, help="How many seeds to run.")] = 200,
    seed: Annotated[int | None, typer.Option("--seed", "-s", min=0, help="Only this one, told in full.")] = None,
    first: Annotated[int, typer.Option("--first", min=0, help="The first seed.")] = 0,
    brokers: Annotated[int, typer.Option("--brokers", min=1, help="Brokers of each simulated cluster.")] = 3,
    level: Annotated[int, typer.Option("--level", min=1, max=2, help="1: the controller; 2: whole brokers.")] = 1,
) -> None:
    """Try to break the control plane, or whole brokers with clients; a seed repeats its run exactly."""
    from klamm.sim import command

    run = command.simulate if level == 1 else command.simulate_cluster
    raise typer.Exit(run(seeds, seed, brokers, first=first, all_lines=seed is not None))

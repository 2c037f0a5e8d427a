"""`klamm simulate`: the control plane under a seeded simulator with faults."""

from __future__ import annotations

from typing import Annotated

import typer


def simulate(
    seeds: Annotated[int, typer.Option("--seeds", "-n", min=1, help="How many seeds to run.")] = 200,
    seed: Annotated[int | None, typer.Option("--seed", "-s", min=0, help="Only this one, told in full.")] = None,
    first: Annotated[int, typer.Option("--first", min=0, help="The first seed.")] = 0,
    brokers: Annotated[int, typer.Option("--brokers", min=1, help="Brokers of each simulated cluster.")] = 3,
) -> None:
    """Try to break the control plane: crashes, pauses, lost sessions; a seed repeats its run exactly."""
    from klamm.sim.command import simulate as run

    raise typer.Exit(run(seeds, seed, brokers, first=first, all_lines=seed is not None))

"""`klamm simulate`: the control plane, or whole brokers, under a seeded simulator with faults."""

from __future__ import annotations

from typing import Annotated

import typer


def simulate(
    seeds: Annotated[
        int | None, typer.Option("--seeds", "-n", min=1, help="How many seeds to run (200; of level 2: 50).")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", "-s", min=0, help="Only this one; a failure is told in full.")
    ] = None,
    first: Annotated[int, typer.Option("--first", min=0, help="The first seed.")] = 0,
    brokers: Annotated[int, typer.Option("--brokers", min=1, help="Brokers of each simulated cluster.")] = 3,
    level: Annotated[int, typer.Option("--level", min=1, max=2, help="1: the controller; 2: whole brokers.")] = 1,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Processes that share the seeds of level 1.")] = 1,
    mutant: Annotated[
        str | None, typer.Option("--mutant", help="Build this bug in, which must be found; a wrong name lists them.")
    ] = None,
    transcript: Annotated[
        bool, typer.Option("--transcript", help="With --seed: the whole transcript, also when nothing is wrong.")
    ] = False,
) -> None:
    """Try to break the control plane, or whole brokers with clients; a seed repeats its run exactly.

    A seed that fails prints what led to it and the command that replays it. Exit code 1: something failed.
    """
    from klamm.sim import command

    all_lines = seed is not None and (transcript or level == 2)
    code = command.run(level, seeds, seed, brokers, first=first, mutant=mutant, all_lines=all_lines, jobs=jobs)
    raise typer.Exit(code)

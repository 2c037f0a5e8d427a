"""`klamm simulate`: the control plane, or whole brokers, under a seeded simulator with faults."""

from __future__ import annotations

from typing import Annotated

import typer

from klamm.cli.output import fail
from klamm.cli.progress_line import ProgressLine


def simulate(
    seeds: Annotated[
        int | None, typer.Option("--seeds", "-n", min=1, help="Number of seeds (200; level 2: 50).")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", "-s", min=0, help="Run only this seed; report a failure in full.")
    ] = None,
    first: Annotated[int | None, typer.Option("--first", min=0, help="First of --seeds (default 0).")] = None,
    brokers: Annotated[int, typer.Option("--brokers", min=1, help="Brokers of each simulated cluster.")] = 3,
    level: Annotated[int, typer.Option("--level", min=1, max=2, help="1: the controller; 2: whole brokers.")] = 1,
    transactions: Annotated[
        bool, typer.Option("--transactions", help="Level 2 with transactional clients and faults aimed at them.")
    ] = False,
    aim: Annotated[
        str | None,
        typer.Option(
            "--aim",
            help="Run this aimed scenario of --level 2, or of --transactions; an unknown name lists the scenarios.",
        ),
    ] = None,
    guarded: Annotated[
        bool, typer.Option("--guarded", help="Level 2 with an authorizer and an intruder who must be refused.")
    ] = False,
    proven: Annotated[
        bool,
        typer.Option("--proven", help="Level 2 with brokers that prove their id, and impostors who must be refused."),
    ] = False,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, help="Processes that share the seeds of level 1 (1).")
    ] = None,
    mutant: Annotated[
        str | None,
        typer.Option(
            "--mutant", help="Insert this bug, which must be found; an unknown name lists the mutants of the level."
        ),
    ] = None,
    transcript: Annotated[
        bool, typer.Option("--transcript", help="Print the transcript of --seed, even if nothing fails.")
    ] = False,
    view: Annotated[
        bool, typer.Option("--view", help="Show the run of --seed in the viewer, in a browser; level 1.")
    ] = False,
) -> None:
    """Try to break the control plane, or whole brokers with clients. A seed repeats its run exactly.

    A failing seed prints its history and the command that replays it. Exit code 1: a seed failed.
    """
    from klamm.sim import command

    _refuse_contradictions(seed, level, mutant, seeds=seeds, first=first, jobs=jobs, transcript=transcript)
    variant = _variant(level, {"transactions": transactions, "guarded": guarded, "proven": proven})
    if aim is not None:
        if mutant is not None:
            fail("--aim cannot be used with --mutant: a mutant runs the scenario that finds it.")
        _check_aim(aim, level, variant)
    if view:
        if transcript:
            fail("--view cannot be combined with --transcript.")
        _view(seed, brokers, level, mutant)
        return
    if mutant is not None and mutant not in (names := command.mutant_names(level, variant=variant)):
        fail(f"There is no mutant {mutant!r} of level {level}. There are: {', '.join(names)}.")
    with ProgressLine() as line:
        code = command.run(
            level,
            seeds,
            seed,
            brokers,
            first=first or 0,
            mutant=mutant,
            all_lines=transcript,
            jobs=jobs or 1,
            variant=variant,
            aim=aim or "",
            progress=line.count("seeds"),
        )
    raise typer.Exit(code)


def _variant(level: int, options: dict[str, bool]) -> str:
    """Return the name of the chosen variant, which is that of its option; the plain one is empty."""
    chosen = [name for name, is_chosen in options.items() if is_chosen]
    if chosen and level == 1:
        fail(f"--{chosen[0]} requires --level 2.")
    if len(chosen) > 1:
        fail(f"--{chosen[0]} cannot be combined with --{chosen[1]}.")
    return chosen[0] if chosen else ""


def _check_aim(aim: str, level: int, variant: str) -> None:
    from klamm.sim import command

    names = command.aim_names(variant) if level == 2 else []
    if not names:
        fail("--aim requires --level 2, alone or with --transactions.")
    if aim not in names:
        fail(f"There is no aimed scenario {aim!r}. There are: {', '.join(names)}.")


def _view(seed: int | None, brokers: int, level: int, mutant: str | None) -> None:
    """Run the seed with a recording and serve it."""
    from klamm.cli.dashboard import new_source, serve
    from klamm.sim.scripted import Plan, ScriptedRun
    from klamm.sim.silence import silence_brokers

    if seed is None:
        fail("--view requires --seed.")
    if level == 2 or mutant is not None:
        fail("--view is for --level 1 without a mutant.")
    silence_brokers()
    run = ScriptedRun(Plan(seed, brokers, chaos=True))
    run.run()
    records = tuple(line.encode() for line in run.recording.lines)
    title = f"seed {seed}, {brokers} brokers" + (f": {run.error}" if run.error else "")
    serve(new_source(title=title, records=records, end_ms=run.world.scheduler.time_ms))


def _refuse_contradictions(
    seed: int | None,
    level: int,
    mutant: str | None,
    *,
    seeds: int | None,
    first: int | None,
    jobs: int | None,
    transcript: bool,
) -> None:
    """Reject options that would be ignored."""
    if seed is not None:
        for option, value in (("--seeds", seeds), ("--first", first), ("--jobs", jobs)):
            if value is not None:
                fail(f"--seed runs one seed and cannot be combined with {option}.")
    elif transcript:
        fail("--transcript requires --seed.")
    if level == 2 and jobs is not None:
        fail("--jobs is for --level 1 only: a run of level 2 is one process.")
    if mutant is not None and jobs is not None:
        fail("--jobs cannot be used with --mutant: a mutant lives in one process.")

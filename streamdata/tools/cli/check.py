"""`streamdata check`: recipe → its problems; with `--resume` what a resume does not repeat; with `--data` faults."""

import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from streamdata.errors import counted, one_line
from streamdata.tools.cli.messages import Ticker, say
from streamdata.tools.cli.options import GivenRecipe, Recipe, checked_packages, takes_recipe

if TYPE_CHECKING:
    from streamdata.tools.data_check.data_check import DataCheck, DataTask
    from streamdata.tools.data_check.data_records import Fault, Findings

_REMEDY = re.compile(r"\.?\n  (?=\S)")
"""Where a message goes on with what to do."""


@takes_recipe
def check(
    recipe: Recipe,
    imports: Annotated[
        list[str] | None,
        typer.Option(
            "--import",
            metavar="PACKAGE",
            help="Import targets of this package, too, to see what they take; as of --allow.",
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Also build it, draw samples, and see whether a resume gives the same.")
    ] = False,
    no_files: Annotated[
        bool, typer.Option("--no-files", help="Do not look whether shards, stores and tokenizers are there.")
    ] = False,
    online: Annotated[
        bool, typer.Option("--online", help="Look for those in stores elsewhere and on the hub, too.")
    ] = False,
    data: Annotated[
        bool, typer.Option("--data", help="Also read every record once, and list all that is wrong with them.")
    ] = False,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, help="Processes that read; by default one for each core.")
    ] = None,
) -> None:
    """Report all errors of a recipe at once, with file and line; builds nothing, imports what you name."""
    if jobs is not None and not data:
        raise typer.BadParameter("expected --data with it", param_hint="--jobs")
    imported = checked_packages(imports, "--import") or []
    passed = check_problems(recipe, imported, with_files=not no_files, online=online)
    if passed and resume:
        passed = _check_resume(recipe)
    if passed and data:
        passed = _check_data(recipe, jobs)
    raise typer.Exit(0 if passed else 1)


def check_problems(given: GivenRecipe, imports: Sequence[str], *, with_files: bool, online: bool) -> bool:
    """Show every problem that can be seen without building the recipe; return whether none is an error."""
    from streamdata.recipe.check import check_recipe
    from streamdata.tools.cli.recipe_files import RecipeFiles

    problems = check_recipe(
        given.path,
        given.variables,
        allow=given.allow,
        imports=imports,
        files=RecipeFiles(online=online) if with_files else None,
        is_streamed=True,
        include_roots=given.include_roots,
    )
    for problem in problems:
        # What could not be checked says so itself.
        say(str(problem) if problem.kind == "not checked" else f"{problem.kind}: {problem}")
    kinds = Counter(problem.kind for problem in problems)
    errors, warned = counted(kinds["error"], "error"), counted(kinds["warning"], "warning")
    say(f"{given.path}: {errors}, {warned}, {kinds['not checked']} not checked")
    return not kinds["error"]


def _check_resume(given: GivenRecipe) -> bool:
    """Build the recipe, restart its functions between samples, and show those that go on with other samples."""
    from streamdata.tools.view.exactness import NUM_SAMPLES, STEPS, find_inexact

    found = find_inexact(partial(given.build, is_quiet=True))  # the check before has shown its warnings
    for inexact in found:
        say(f"error: {inexact}")
    steps = ", ".join(map(str, STEPS))
    result = f"{len(found)} not the same" if found else "the same samples"
    say(f"resume: {NUM_SAMPLES} samples of each source, restarted from JSON states after {steps}: {result}")
    return not found


def _check_data(given: GivenRecipe, jobs: int | None) -> bool:
    """Read all records, show what is wrong by kind and place, and return whether nothing is."""
    from streamdata.tools.data_check.data_check import DataCheck
    from streamdata.tools.data_check.data_records import Findings

    check, found, began = DataCheck(*given), Findings(), time.monotonic()
    tasks, parts, so_far = list(check.tasks(found)), dict["DataTask", Findings](), Findings()
    num_processes = min(jobs or len(os.sched_getaffinity(0)), len(tasks))
    with Ticker(plain_interval_s=10.0) as ticker:
        for task, part in _parts(check, tasks, num_processes):
            parts[task] = part
            so_far.join(part)
            ticker.tick(partial(_progress, len(parts), len(tasks), so_far, time.monotonic() - began))
    for task in tasks:  # in the recipe's order, whichever process was faster
        found.join(parts[task])
    for line in _lines(found):
        say(line)
    sources = counted(len(check.sources), "source")
    kinds = ", ".join(f"{kind}: {number:,}" for kind, number in sorted(found.counts.items())) or "nothing is wrong"
    dropped = f"; {found.num_dropped:,} dropped by functions" if found.num_dropped else ""
    say(f"data: {counted(found.num_records, 'record')} of {sources} read: {kinds}{dropped}")
    return not found.counts


def _parts(check: "DataCheck", tasks: Sequence["DataTask"], count: int) -> Iterator[tuple["DataTask", "Findings"]]:
    """Yield each task with its findings; where its process died that is a fault, and new processes do the others."""
    from streamdata.run.processes import ProcessDiedError, forks
    from streamdata.tools.data_check.data_records import Findings

    waiting = dict.fromkeys(tasks)
    while waiting:
        found = defaultdict["DataTask", Findings](Findings)  # what is under way when a process dies is read again
        try:
            # One reads in a process of its own, too: a function that ends it must not end the command.
            with forks(check, count) as team:
                for task, counted in team.run(tuple(waiting), report=partial(_take, found)):
                    del waiting[task]
                    found[task].join(counted)
                    yield task, found[task]
        except ProcessDiedError as error:
            check.note_death(error.task, error, found[error.task])
            del waiting[error.task]
            yield error.task, found[error.task]


def _take(found: Mapping["DataTask", "Findings"], told: tuple["DataTask", "Fault"]) -> None:
    task, fault = told
    found[task].faults.append(fault)


def _progress(done: int, total: int, found: "Findings", seconds: float) -> str:
    rate = found.num_records / max(seconds, 1e-9)
    share = f"{done / total:.0%} of {total:,} shards and runs"
    return f"{share}  {found.num_records:,} records  {rate:,.0f}/s  {found.counts.total():,} faults"


def _lines(found: "Findings") -> Iterator[str]:
    """The faults, by source and kind."""
    for fault in sorted(found.faults, key=lambda fault: (fault.source, fault.kind)):  # stable: in the files' order
        source = f" {one_line(fault.source)}:" if fault.source else ""
        # A fault is a line: what to do about it stands in the same one, other line ends are escaped.
        yield f"error: {fault.kind}:{source} {one_line(_REMEDY.sub('. ', fault.message))}"
    if unlisted := found.counts.total() - len(found.faults):
        yield f"… and {unlisted:,} more, of which each shard lists the first of their kind alone"

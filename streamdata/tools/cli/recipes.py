"""Commands about recipes: `init` writes one, `check` lists its problems, `schema` describes all of them.

`check --resume` also says what a resume does not repeat, `check --data` which records are damaged.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from streamdata.errors import StreamdataError, counted, one_line
from streamdata.tools.cli.messages import Ticker, say
from streamdata.tools.cli.options import GivenRecipe, Recipe, checked_packages, option, takes_recipe


@takes_recipe
def check(
    recipe: Recipe,
    imports: Annotated[list[str] | None, option("Also import its targets.", "--import", metavar="PACKAGE")] = None,
    resume: Annotated[bool, option("Also check that a resume gives the same samples.", "--resume")] = False,
    no_files: Annotated[bool, option("Do not check that shards, stores and tokenizers exist.", "--no-files")] = False,
    online: Annotated[bool, option("Also check those in remote stores and on the hub.", "--online")] = False,
    data: Annotated[bool, option("Also read every record once, and list all that is wrong.", "--data")] = False,
    jobs: Annotated[int | None, option("Processes; by default one for each core.", "--jobs", "-j", min=1)] = None,
) -> None:
    """Report all errors of a recipe at once, with file and line; builds nothing, and imports only what you name."""
    if jobs is not None and not data:
        raise typer.BadParameter("expected --data with it", param_hint="--jobs")
    imported = checked_packages(imports, "--import") or []
    passed = check_problems(recipe, imported, with_files=not no_files, online=online)
    if passed and resume:
        from streamdata.tools.view.exactness import NUM_SAMPLES, STEPS, find_inexact

        found = find_inexact(partial(recipe.build, is_quiet=True))  # the check before has shown its warnings
        for inexact in found:
            say(f"error: {inexact}")
        steps = ", ".join(map(str, STEPS))
        result = f"{len(found)} not the same" if found else "the same samples"
        say(f"resume: {NUM_SAMPLES} samples of each source, restarted from JSON states after {steps}: {result}")
        passed = not found
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


def _check_data(given: GivenRecipe, jobs: int | None) -> bool:
    """Read all records, show what is wrong by kind and place, and return whether nothing is."""
    from streamdata.tools.data_check.data_check import DataCheck, fault_lines, progress_line, read_tasks
    from streamdata.tools.data_check.data_records import Findings

    check, found, began = DataCheck(*given), Findings(), time.monotonic()
    parts = {task: Findings() for task in check.tasks(found)}
    num_processes = min(jobs or len(os.sched_getaffinity(0)), len(parts))
    with Ticker(plain_interval_s=10.0) as ticker:
        for done in read_tasks(check, parts, num_processes):
            ticker.tick(partial(progress_line, done, parts.values(), began))
    for part in parts.values():  # in the recipe's order, whichever process was faster
        found.join(part)
    for line in fault_lines(found):
        say(line)
    sources = counted(len(check.sources), "source")
    kinds = ", ".join(f"{kind}: {number:,}" for kind, number in sorted(found.counts.items())) or "nothing is wrong"
    dropped = f"; {found.num_dropped:,} dropped by functions" if found.num_dropped else ""
    say(f"data: {counted(found.num_records, 'record')} of {sources} read: {kinds}{dropped}")
    return not found.counts


def init(
    paths: Annotated[list[str], typer.Argument(metavar="PATH…", help="Files, folders, globs in quotes, or urls.")],
    output: Annotated[Path, option("The recipe to write, a new file.", "--output", "-o")] = Path("recipe.yaml"),
) -> None:
    """Write a recipe for data as it lies: a source for each path, with comments on what was seen and guessed.

    A folder of shards is several sources where files differ in kind, or in more
    than digits of their names. Name a glob in quotes for one source of many
    files, and each store and each folder of images by itself.
    """
    if output.exists():
        raise typer.BadParameter(f"expected a new file, got '{one_line(output)}', which is there", param_hint="-o")
    from streamdata.recipe.check import check_recipe
    from streamdata.recipe.yaml_tree import Locations, read_yaml
    from streamdata.tools.cli.recipe_files import RecipeFiles
    from streamdata.tools.init.draft import Draft, draft_sources, find_groups, recipe_text
    from streamdata.tools.view.tree import table

    sources, errors = list[Draft](), list[str]()
    for path in dict.fromkeys(paths):
        try:
            sources += draft_sources(path, find_groups(path), {source.name for source in sources})
        except (OSError, ValueError, ImportError, StreamdataError) as error:
            errors.append(str(error))
    recipe = recipe_text(sources, paths)
    read, variables = read_yaml(recipe.encode(), Locations("")), {"tokenizer": "NAME"}
    problems = check_recipe(read, variables, files=RecipeFiles(), is_streamed=True)
    errors = errors or [str(problem) for problem in problems if problem.kind == "error"]
    if errors:
        say("\n".join(f"error: {error}" for error in errors), err=True)
        raise typer.Exit(1)
    with output.open("x", encoding="utf-8") as file:
        file.write(recipe)
    say(f"{output}: {counted(len(sources), 'source')}, to read and edit")
    targets = [source.target.removeprefix("streamdata.") for source in sources]
    say(table([[one.name, one.about[0].rstrip("."), target] for one, target in zip(sources, targets, strict=True)]))
    variable = " --var tokenizer=NAME" * any("tokenizer" in source.params for source in sources)
    say(f"\nNext:\n  streamdata check {output}{variable}\n  streamdata show {output}{variable} -n 1")


def schema() -> None:
    """Print a JSON schema of recipes, for an editor: our targets, what they take, and what it means.

    Editors with a YAML language server read it where a recipe begins with
    "# yaml-language-server: $schema=FILE".
    """
    from streamdata.tools.init.schema import recipe_schema

    typer.echo(json.dumps(recipe_schema(), indent=1, sort_keys=True))

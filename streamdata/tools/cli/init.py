"""Commands for who writes a recipe: `init` writes the first one, `schema` says to an editor what recipes may say."""

import json
from pathlib import Path
from typing import Annotated

import typer

from streamdata.errors import StreamdataError, counted, one_line
from streamdata.tools.cli.messages import say
from streamdata.tools.cli.options import option


def init(
    paths: Annotated[list[str], typer.Argument(metavar="PATH…", help="Files, folders, globs in quotes, or urls.")],
    output: Annotated[
        Path, option("The recipe to write; a file that is there stays as it is.", "--output", "-o")
    ] = Path("recipe.yaml"),
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
    from streamdata.tools.init.draft import Draft, draft_sources, recipe_text
    from streamdata.tools.init.find import find_groups
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
    say(f"\nNext:\n  streamdata check {output}{variable}\n  streamdata show {output}{variable}")


def schema() -> None:
    """Print a JSON schema of recipes, for an editor: our targets, what they take, and what it means.

    Editors with a YAML language server read it where a recipe begins with
    "# yaml-language-server: $schema=FILE".
    """
    from streamdata.tools.init.schema import recipe_schema

    typer.echo(json.dumps(recipe_schema(), indent=1, sort_keys=True))

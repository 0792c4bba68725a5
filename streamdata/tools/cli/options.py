"""The options that several commands have, and what is read from them."""

from pathlib import Path
from typing import Annotated, Any

import typer

from streamdata.errors import RecipeError, shown

MAX_RANKS = 1 << 17
"""`streamdata.run.MAX_RANKS`, which is not imported: `--help` needs no NumPy."""
MAX_COUNT = 2**53 - 1
"""What states and other JSON hold exactly."""

Recipe = Annotated[Path, typer.Argument(help="The YAML file.", exists=True, dir_okay=False, readable=True)]
Variables = Annotated[
    list[str] | None,
    typer.Option("--var", metavar="NAME=VALUE", help="A value for ${variables:NAME}, typed as in YAML."),
]
Allow = Annotated[
    list[str] | None, typer.Option(metavar="PACKAGE", help="Accept only targets of these packages and streamdata.")
]
Import = Annotated[
    list[str] | None,
    typer.Option(
        "--import", metavar="PACKAGE", help="Import targets of this package, too, to see what they take; as of --allow."
    ),
]
IncludeRoot = Annotated[
    list[Path] | None,
    typer.Option(
        "--include-root",
        metavar="FOLDER",
        help="A folder with files that the recipe may include.",
        exists=True,
        file_okay=False,
    ),
]
Batches = Annotated[
    int | None,
    typer.Option(min=1, max=MAX_COUNT, metavar="N", help="Stop after N batches; by default at the end, or at Ctrl-C."),
]
BatchSize = Annotated[int, typer.Option(min=1, max=MAX_COUNT, help="Samples in a batch.")]
Workers = Annotated[int, typer.Option(min=0, help="Worker processes of the DataLoader.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document, and nothing else on stdout.")]
Traceback = Annotated[bool, typer.Option("--traceback", help="Show where an error was raised, and how it came there.")]


def texts(paths: list[Path] | None) -> list[str]:
    """Paths as texts; an empty list where the option is absent."""
    return list(map(str, paths or ()))


def parse_variables(assignments: list[str] | None) -> dict[str, Any]:
    """Read NAME=VALUE, the value as a recipe's YAML is read.

    Raises:
        typer.BadParameter: One is not an assignment, its value is not YAML, or it names a variable again.
    """
    variables: dict[str, Any] = {}
    for assignment in assignments or ():
        name, equals, value = assignment.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"expected NAME=VALUE, got {shown(assignment)}", param_hint="--var")
        if name in variables:
            raise typer.BadParameter(f"{shown(name)} is given twice", param_hint="--var")
        variables[name] = _yaml_value(name, value)
    return variables


def _yaml_value(name: str, text: str) -> Any:
    from streamdata.recipe.locations import Locations, UnreadableError
    from streamdata.recipe.yaml_tree import read_yaml

    try:
        return read_yaml(text.encode(), Locations(name))
    except (RecipeError, UnreadableError) as error:
        raise typer.BadParameter(str(error), param_hint="--var") from error


def checked_allow(packages: list[str] | None, option: str = "--allow") -> list[str] | None:
    """The packages of `--allow` or of another option, or None.

    Raises:
        typer.BadParameter: One is not the name of a package.
    """
    from streamdata.recipe.targets import validated_allow

    try:
        validated_allow(packages, option)
    except ValueError as error:
        raise typer.BadParameter(str(error).partition("\n")[0], param_hint=option) from error
    return packages or None  # typer gives [] where the option is absent

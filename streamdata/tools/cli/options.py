"""Options that several commands have, and the recipe that they give."""

import functools
import inspect
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from streamdata.errors import RecipeError, shown
from streamdata.tools.cli.messages import Signals, messages, say

if TYPE_CHECKING:
    from streamdata.mixing import MergedDataset

MAX_RANKS = 1 << 17
"""`streamdata.run.MAX_RANKS`, which is not imported: `--help` needs no NumPy."""
MAX_COUNT = 2**53 - 1
"""The largest number that states and other JSON hold exactly."""


def count(text: str, *names: str, least: int = 1, most: int = MAX_COUNT, metavar: str = "N") -> Any:
    """An option that is a whole number, also as 2e12. Help shows its lower bound: the upper one is technical.

    Args:
        text: Its help.
        names: As it is written; by default the parameter's name.
        least: The least number.
        most: The largest one; beyond it is a usage error.
        metavar: How help calls the number.
    """

    def whole(value: str | int) -> int:
        number = float(value) if "e" in str(value).lower() else int(value)
        if not least <= number <= most or number != int(number):
            raise ValueError(f"expected a whole number from {least:,} to {most:,}, got {value}")
        return int(number)

    return typer.Option(*names, parser=whole, metavar=f"{metavar} [x>={least}]", help=text)


def option(text: str, *names: str, **more: Any) -> Any:
    """An option, by its help and how it is written; see `typer.Option`."""
    return typer.Option(*names, help=text, **more)


Batch = Annotated[int, count("Samples in a batch of one rank.", "--batch", metavar="B")]
Workers = Annotated[int, count("Worker processes of each rank's DataLoader.", least=0, most=256, metavar="W")]
Ranks = Annotated[int, count("Data-parallel ranks.", "--ranks", most=MAX_RANKS, metavar="R")]
StateFiles = Annotated[list[Path], typer.Argument(metavar="FILE…", help="States, or folders of steps.", exists=True)]
Json = Annotated[bool, option("Print one JSON document, and nothing else on stdout.", "--json")]


class _FlagsByName:
    """Lets help show a flag by its name alone, not as one that takes a `<bool>`."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, with that of `--help`."""
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if isinstance(param, TyperOption) and param.is_bool_flag:
                param.metavar = ""
        return params


class CommandGroup(_FlagsByName, TyperGroup):
    """A group of commands."""


class Command(_FlagsByName, TyperCommand):
    """A command that ends with one message where its data is wrong."""

    def invoke(self, ctx: Any) -> Any:
        """Run it."""
        with messages(with_traceback=ctx.params.get("traceback")), ctx.ensure_object(Signals):
            return super().invoke(ctx)


class GivenRecipe(NamedTuple):
    """A recipe, and how the command line says to read it.

    Attributes:
        path: The file.
        variables: Values of its variables.
        allow: The packages whose targets are accepted; None for all but the standard library.
        include_roots: Folders with files that it may include.
    """

    path: Path
    variables: dict[str, Any]
    allow: list[str] | None
    include_roots: list[str]

    def build(self, *, is_quiet: bool = False) -> "MergedDataset":
        """Build the recipe. Its root is a mixture, or a source, which is then mixed alone.

        Args:
            is_quiet: Say no warnings on stderr.

        Raises:
            RecipeError: It cannot be built, or its root is something else.
        """
        from streamdata.mixing.merged import instantiate_from_yaml, top_of

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            dataset = instantiate_from_yaml(
                self.path, self.variables, allow=self.allow, include_roots=self.include_roots
            )
        for warning in () if is_quiet else caught:
            say(f"warning: {warning.message}", err=True)
        try:
            return top_of(dataset, f"{self.path}: root")
        except ValueError as error:
            raise RecipeError(str(error)) from error


Recipe = Annotated[GivenRecipe, typer.Argument(help="The YAML file.", exists=True, dir_okay=False, readable=True)]


def given_recipe(
    path: Path,
    var: Annotated[list[str] | None, option("The value of ${variables:NAME}, as YAML.", metavar="NAME=VALUE")] = None,
    allow: Annotated[list[str] | None, option("Accept only our targets and this package's.", metavar="PACKAGE")] = None,
    include_root: Annotated[
        list[Path] | None, option("A folder to include from.", metavar="FOLDER", exists=True, file_okay=False)
    ] = None,
    traceback: Annotated[bool, option("Show where an error was raised, and how it came there.", "--traceback")] = False,
) -> GivenRecipe:
    """Read the options of all commands that take a recipe; `Command` knows what `traceback` is for.

    Raises:
        typer.BadParameter: An assignment of `--var` or a package of `--allow` is not one.
    """
    del traceback
    return GivenRecipe(path, _variables(var), checked_packages(allow, "--allow"), list(map(str, include_root or ())))


def takes_recipe(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command, whose first parameter is a `GivenRecipe`, the file as an argument, and the options of recipes."""
    signature, (_, *options) = inspect.signature(command), inspect.signature(given_recipe).parameters.values()
    first, *own = signature.parameters.values()
    path = first.replace(annotation=Annotated[Path, *first.annotation.__metadata__])

    @functools.wraps(command)
    def run(**given: Any) -> None:
        recipe = given_recipe(given.pop(path.name), **{option.name: given.pop(option.name) for option in options})
        command(recipe, **given)

    run.__signature__ = signature.replace(parameters=[path, *own, *options])  # type: ignore[attr-defined]
    return run


def _variables(assignments: list[str] | None) -> dict[str, Any]:
    """Read each NAME=VALUE, the value as a recipe's YAML is read."""
    from streamdata.recipe.yaml_tree import Locations, UnreadableError, read_yaml

    variables: dict[str, Any] = {}
    for assignment in assignments or ():
        name, equals, value = assignment.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"expected NAME=VALUE, got {shown(assignment)}", param_hint="--var")
        if name in variables:
            raise typer.BadParameter(f"{shown(name)} is given twice", param_hint="--var")
        try:
            variables[name] = read_yaml(value.encode(), Locations(name))
        except (RecipeError, UnreadableError) as error:
            raise typer.BadParameter(str(error), param_hint="--var") from error
    return variables


def checked_packages(packages: list[str] | None, option: str) -> list[str] | None:
    """Return the packages of an option; None where it is absent.

    Raises:
        typer.BadParameter: One is not the name of a package.
    """
    from streamdata.recipe.targets import validated_allow

    try:
        validated_allow(packages, option)
    except ValueError as error:
        raise typer.BadParameter(str(error).partition("\n")[0], param_hint=option) from error
    return packages or None  # typer gives [] where the option is absent

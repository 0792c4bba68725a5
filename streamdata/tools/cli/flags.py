"""Commands whose help shows a flag by its name alone, not as one that takes a `<bool>`."""

from typing import Any

from typer.core import TyperCommand, TyperGroup, TyperOption


class FlagsCommand(TyperCommand):
    """A command."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, with that of `--help`."""
        return _without_bool(super().get_params(ctx))


class FlagsGroup(TyperGroup):
    """A group of commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, with that of `--help`."""
        return _without_bool(super().get_params(ctx))


def _without_bool(params: list[Any]) -> list[Any]:
    for param in params:
        if isinstance(param, TyperOption) and param.is_bool_flag:
            param.metavar = ""
    return params

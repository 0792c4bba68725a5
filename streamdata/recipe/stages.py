"""Stages of webdataset's pipelines as targets: called with `params` they give what takes the records."""

import inspect
from collections.abc import Callable
from functools import update_wrapper
from typing import Any

from streamdata.errors import shown


def is_stage(target: object) -> bool:
    """Whether it is one of webdataset's, such as `webdataset.decode`."""
    # Not by import: who has one has imported it.
    return (type(target).__module__, type(target).__name__) == ("webdataset.filters", "RestCurried")


def stage_builder(stage: Any) -> Callable[..., Any]:
    """What builds a stage from `params`, among which `args` is a list of those that have no name.

    Raises:
        TypeError: The stage cannot be called so; when it is called.
    """
    signature = inspect.signature(stage)

    def build(args: list[Any] | None = None, **keywords: Any) -> Any:
        if not isinstance(args, list | None):
            raise TypeError(f"expected a list as args, got {shown(args)}")
        signature.bind(None, *(args or ()), **keywords)  # None for its data, which it is given when it is read
        return stage(*(args or ()), **keywords)

    update_wrapper(build, stage)
    # Not that of the stage, which asks for its data first.
    del build.__wrapped__  # type: ignore[attr-defined]
    return build

"""What the sources of a mixture must be: checked when it is built, where the recipe's line is known."""

import math
from collections.abc import Iterator, Sequence
from numbers import Integral, Real
from typing import Any

from streamdata.mixing.tree import MixtureSettings, path_below
from streamdata.sources.shard_source import ShardDataset


def check_sources(datasets: Sequence[Any]) -> None:
    """Check the sources of a mixture.

    Raises:
        ValueError: No sources, one twice, a name missing, double or with a ".", a `percent` that is no positive
            number, a `max_bad` that counts nothing, a function that is none, or something that is no source.
    """
    if not datasets:
        raise ValueError("MergedDataset: expected at least one source in datasets, got none")
    names: dict[str, Any] = {}
    for number, dataset in enumerate(datasets):
        where = f"MergedDataset, source {number} ({type(dataset).__name__}){_recipe_location(dataset)}"
        name = _checked_name(dataset, where)
        if name in names:
            raise ValueError(
                f"{where}: the name {name!r} is taken{_recipe_location(names[name])}\n  Give each source its own name."
            )
        names[name] = dataset
        _check_percent(dataset, f"{where}, {name!r}")
        _check_max_bad(dataset, f"{where}, {name!r}")
        _check_functions(dataset, f"{where}, {name!r}")
        if not isinstance(dataset, MixtureSettings | ShardDataset):
            _check_map_style(dataset, f"{where}, {name!r}")
    _check_once(datasets)
    for dataset in datasets:
        if isinstance(dataset, MixtureSettings):
            _check_rounds(dataset)


def _recipe_location(dataset: Any) -> str:
    location = getattr(dataset, "_recipe_location", None)
    return f" at {location}" if location else ""


def _checked_name(dataset: Any, where: str) -> str:
    name = getattr(dataset, "name", None)
    if not isinstance(name, str) or not name or "." in name:
        raise ValueError(f"{where}: expected a unique name without '.', got {name!r}\n  Set its attribute `name`.")
    return name


def _check_percent(dataset: Any, where: str) -> None:
    percent: Any = getattr(dataset, "percent", None)
    is_number = isinstance(percent, Real) and percent is not True
    number = float(percent) if is_number else 0.0
    if not 0 < number < math.inf:
        raise ValueError(
            f"{where}: expected a positive number as percent, got {percent!r}\n"
            "  Set its attribute `percent`; they need not add to 1."
        )


def _check_max_bad(dataset: Any, where: str) -> None:
    most: Any = getattr(dataset, "max_bad", 0)
    if isinstance(most, bool) or not isinstance(most, Integral) or most < 0:
        raise ValueError(
            f"{where}: expected a whole number of failures as max_bad, got {most!r}\n"
            "  So many may be skipped per lane; a percentage is understood by `streamdata prepare` alone."
        )


def _check_functions(dataset: Any, where: str) -> None:
    for name in ("single_process_fn", "process_fn"):
        function = getattr(dataset, name, None)
        if function is not None and not callable(function):
            raise ValueError(
                f"{where}: expected a function as {name}, got {function!r}\n"
                f"  In a recipe a function is named by a target: '{name}: {{target: my_pkg.my_fn}}'."
            )


def _check_map_style(dataset: Any, where: str) -> None:
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise ValueError(
            f"{where}: expected a map-style dataset (__len__ and __getitem__) or a source of streamdata, got neither\n"
            "  An iterable of another library cannot be split and resumed exactly; use its files or its map-style form."
        )


def _check_once(datasets: Sequence[Any]) -> None:
    """The same object twice would be read twice under two names, or share what its functions hold."""
    seen: dict[int, str] = {}
    for dataset, path in _nodes(datasets, ""):
        if id(dataset) in seen:
            raise ValueError(
                f"MergedDataset: {path!r} is the same object as {seen[id(dataset)]!r}\n"
                "  Build it twice, or raise its percent."
            )
        seen[id(dataset)] = path


def _check_rounds(mixed: Any) -> None:
    """Below another mixture a finite one begins again, in rounds: its yield function must not straddle two of them."""
    endless = [path for node, path in _nodes(mixed.datasets, mixed.name) if getattr(node, "cyclic", False)]
    if not mixed.cyclic and mixed.customized_yield_fn is not None and endless:
        raise ValueError(
            f"MergedDataset: {mixed.name!r} is finite with a customized_yield_fn, but {endless[0]!r} in it is cyclic\n"
            "  What was pulled of that when a round ends could not be had again: make both cyclic, or neither."
        )
    for dataset in mixed.datasets:
        if isinstance(dataset, MixtureSettings):
            _check_rounds(dataset)


def _nodes(datasets: Sequence[Any], path: str) -> Iterator[tuple[Any, str]]:
    for dataset in datasets:
        below = path_below(path, dataset.name)
        yield dataset, below
        if isinstance(dataset, MixtureSettings):
            yield from _nodes(dataset.datasets, below)

"""Weights that are set while a run goes on: `percents by name → checked → what nodes of the tree have by then`.

At a resume: states, recipe → which of them still stand.
"""

import math
from collections.abc import Mapping
from typing import Any

from streamdata.errors import StateError, did_you_mean, listing, shown
from streamdata.mixing.checks import check_nested
from streamdata.mixing.tree import MixtureSettings, named_nodes, tree_of
from streamdata.recipe.named_source import LEAST, MOST, STEPS, SizeWeight, Weight, plain_number, read_percent
from streamdata.states.headers import SetPercent
from streamdata.states.progress import Progress


def live_after(top: MixtureSettings, weights: Mapping[str, float], time: float) -> dict[str, SetPercent]:
    """The weights that stand once percents are set.

    Args:
        top: The mixture, with those that were set before.
        weights: Percents, by path.
        time: What the schedules' time is; the next point of a source's schedule ends its percent.

    Raises:
        ValueError: See `StreamLoader.set_weights`.
    """
    nodes = named_nodes(top)
    _check_names(nodes, weights)
    live = dict(top.live)
    for path, percent in weights.items():
        number = plain_number(percent)
        if number is None:
            raise ValueError(
                f"set_weights: {shown(path)}: expected 0 or a number from {LEAST:g} to {MOST:g} as percent, got "
                f"{shown(percent)}\n  0 stops a source."
            )
        recipe = read_percent(nodes[path].percent)
        live[path] = SetPercent(number, _as_json(recipe), _until_next_point(recipe, number, time))
    _check_together(top, nodes, live)
    return live


def live_at_resume(top: MixtureSettings, progress: Progress) -> tuple[dict[str, SetPercent], list[str]]:
    """The set weights that states bring, without those whose percent in the recipe has changed since.

    Returns:
        Those that stand; and a line for each that does not.

    Raises:
        StateError: With the present recipe they leave nothing of a mixture.
    """
    if not progress:
        return {}, []
    nodes, lines = named_nodes(top), []
    live = dict(progress.tree(progress.newest).set_percents)
    for path, held in list(live.items()):
        recipe = _as_json(read_percent(nodes[path].percent)) if path in nodes else None
        if recipe != held.recipe:
            del live[path]
            lines.append(
                f"source {shown(path)}: its percent in the recipe was {held.recipe} when {held.percent:g} was set, and "
                f"is {'not there' if recipe is None else recipe} now: that counts, and what was set is forgotten"
            )
    try:
        _check_together(top, nodes, live)
    except ValueError as error:
        raise StateError(
            f"states: the weights that were set do not go with the recipe, which has changed since: {error}\n"
            "  Or change the percents of these sources in the recipe: what was set of them is then forgotten."
        ) from None
    return live, lines


def _check_names(nodes: Mapping[str, Any], weights: Mapping[str, float]) -> None:
    if not isinstance(weights, Mapping) or not weights:
        raise ValueError(
            f"set_weights: expected percents by name, got {shown(weights)}\n  Such as {{'web': 0.4, 'lab.code': 0.1}}."
        )
    for path in weights:
        if path not in nodes:
            hint = did_you_mean(path, list(nodes)) if isinstance(path, str) else ""
            raise ValueError(
                f"set_weights: expected the names of sources or mixtures, got {shown(path)}{hint}\n"
                f"  There are {listing(sorted(nodes))}."
            )
        parts = path.split(".")
        for around in (".".join(parts[:end]) for end in range(1, len(parts))):
            if nodes[around].customized_yield_fn is not None:
                raise ValueError(
                    f"set_weights: {shown(path)}: expected a source outside of mixtures with a customized_yield_fn, "
                    f"such as {shown(around)}, within another\n"
                    f"  Set the weight of {shown(around)} itself, or change the recipe and resume."
                )


def _check_together(top: MixtureSettings, nodes: Mapping[str, Any], live: Mapping[str, SetPercent]) -> None:
    """Check that each mixture has something left at any time, and that the stream ends, or does not, as before.

    And sources that the recipe leaves out, which nobody has checked or looked into.
    """
    if not live:
        return
    for path, node in {"": top, **nodes}.items():
        if isinstance(node, MixtureSettings):
            _check_mixture(node, path, live)
    tree, own = tree_of(top, live=live), tree_of(top, live={})
    for mixture in (node for node in tree.walk() if node.is_mixture):
        try:
            _ = mixture.shares
        except ValueError as error:
            raise ValueError(f"set_weights: mixture {shown(mixture.path or 'top')}: {error}") from None
        for child in mixture.children:
            if child.is_mixture:
                check_nested(mixture.dataset, child)
    if tree.is_endless != own.is_endless:
        raise ValueError(
            "set_weights: expected weights with which the stream "
            f"{'goes on without end' if own.is_endless else 'comes to its end'} as before, got others: of what is left "
            f"at percents above 0 {'nothing' if own.is_endless else 'all'} goes on without end\n"
            "  Sources with max_epochs end. Keep another one above 0."
        )
    _ = tree.tree  # raises where a source cannot be read


def _check_mixture(mixture: MixtureSettings, path: str, live: Mapping[str, SetPercent]) -> None:
    """Check that a mixture has something left, and that its percents still count one thing."""
    paths = {f"{path}.{child.name}".lstrip("."): child for child in mixture.datasets}
    own = {name: live[name].weight if name in live else read_percent(one.percent) for name, one in paths.items()}
    if not any(own.values()):
        raise ValueError(
            f"set_weights: expected a percent above 0 in the mixture {shown(path or 'top')}, got 0 of all of "
            f"{listing(sorted(own))}\n  To stop all of it, set its own percent to 0."
        )
    sized = sorted(name for name, weight in own.items() if isinstance(weight, SizeWeight))
    if sized and any(name in live for name in own):
        raise ValueError(
            f"set_weights: expected percents of all sources of {shown(path or 'top')}, whose own are by size, got none "
            f"of {listing(sized)}\n  Numbers cannot be weighed against sizes: name all."
        )


def _until_next_point(recipe: Weight | SizeWeight, percent: float, time: float) -> Weight:
    """A percent that stands until the schedule's next point, from which on that counts."""
    if isinstance(recipe, int | float | SizeWeight):
        return percent
    later = [point for point in (recipe[STEPS] if isinstance(recipe, dict) else recipe) if point[0] > time]
    if not later:
        return percent
    points = [[math.nextafter(later[0][0], -math.inf), percent], *later]
    return {STEPS: points} if isinstance(recipe, dict) else points


def _as_json(percent: Weight | SizeWeight) -> Any:
    return vars(percent) if isinstance(percent, SizeWeight) else percent

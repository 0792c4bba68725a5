"""What the sources of a mixture must be: checked when it is built, where the recipe's line is known."""

from numbers import Integral
from typing import Any

from torch.utils.data import IterableDataset

from streamdata.errors import shown
from streamdata.mixing.lengths import check_factors
from streamdata.mixing.tree import MixtureSettings, Node, in_recipe, tree_of
from streamdata.recipe.named_source import is_absent, read_percent
from streamdata.recipe.targets import is_stage
from streamdata.sources.files.shard_source import ShardDataset
from streamdata.sources.foreign.map_style import leave_out_filtered
from streamdata.sources.foreign.named import check_dataset
from streamdata.sources.foreign.own_stream import LANES, is_own_stream
from streamdata.sources.functions.starts import is_stateful
from streamdata.sources.order.part import part_of, range_of


def check_sources(mixture: MixtureSettings) -> None:
    """Check the sources of a mixture, among which other mixtures have been checked when they were built.

    Raises:
        ValueError: No sources, one twice, a name missing, double or with a ".", a `percent` that is not one or does
            not go with those beside it, a `max_bad` or `max_epochs` that is not a count, a `holdout` or `part` that is
            not valid, something that is not a function or not a source, or mixtures whose ends do not fit together.
    """
    if not mixture.datasets:
        raise ValueError("MergedDataset: expected at least one source in datasets, got none")
    names: dict[str, Any] = {}
    for number, dataset in enumerate(mixture.datasets):
        who = f"MergedDataset, source {number} ({type(dataset).__name__}){in_recipe(dataset)}"
        check_dataset(dataset, who)
        name = _checked_name(dataset, who)
        if name in names:
            raise ValueError(
                f"{who}: the name {shown(name)} is taken{in_recipe(names[name])}\n  Give each source its own name."
            )
        names[name] = dataset
        _check_percent(dataset, f"{who}, {shown(name)}")
        _check_max_bad(dataset, f"{who}, {shown(name)}")
        _check_max_epochs(dataset, f"{who}, {shown(name)}")
        _check_holdout(dataset, f"{who}, {shown(name)}")
        _check_functions(dataset, f"{who}, {shown(name)}")
        leave_out_filtered(dataset)
        _check_own_stream(dataset, f"{who}, {shown(name)}")
        check_factors(dataset, f"{who}, {shown(name)}")
        _check_of_top(dataset, f"{who}, {shown(name)}")
    _check_any_is_there(mixture)
    _check_cost(mixture.cost)
    top = tree_of(mixture)
    _check_once(top)
    _check_weights(top)
    for child in top.children:
        if child.is_mixture:
            _check_end(mixture, child.dataset)
            _check_no_schedule_below(child)


def _checked_name(dataset: Any, who: str) -> str:
    name = getattr(dataset, "name", None)
    if not isinstance(name, str) or not name or "." in name:
        raise ValueError(f"{who}: expected a unique name without '.', got {shown(name)}\n  Set its attribute `name`.")
    return name


def _check_percent(dataset: Any, who: str) -> None:
    try:
        read_percent(getattr(dataset, "percent", None))
    except ValueError as error:
        raise ValueError(f"{who}: {error}") from None


def _check_any_is_there(mixture: MixtureSettings) -> None:
    if all(is_absent(dataset.percent) for dataset in mixture.datasets):
        first = mixture.datasets[0]
        raise ValueError(
            f"MergedDataset{in_recipe(first)}, {shown(first.name)}: expected a positive number as percent, got 0\n"
            "  0 leaves a source out, and here all are left out."
        )


def _check_cost(cost: object) -> None:
    if cost is not None and not callable(cost) and not (isinstance(cost, str) and cost):
        raise ValueError(
            f"MergedDataset: expected a function of a sample, or the name of a field, as cost, got {shown(cost)}"
        )


def _check_weights(mixture: Node) -> None:
    """Whether the weights of its sources go together: those of mixtures within it were checked with these."""
    try:
        _ = mixture.weights
    except ValueError as error:
        raise ValueError(f"MergedDataset: {error}") from None


def _check_max_bad(dataset: Any, who: str) -> None:
    max_bad: Any = getattr(dataset, "max_bad", 0)
    if isinstance(max_bad, bool) or not isinstance(max_bad, Integral) or max_bad < 0:
        raise ValueError(
            f"{who}: expected a whole number of failures as max_bad, got {shown(max_bad)}\n"
            "  It is how many may be skipped per lane; a percentage is understood by `streamdata prepare` alone."
        )


def _check_max_epochs(dataset: Any, who: str) -> None:
    max_epochs: Any = getattr(dataset, "max_epochs", None)
    if max_epochs is None:
        return
    if isinstance(dataset, MixtureSettings):
        raise ValueError(
            f"{who}: expected no max_epochs of a mixture, got {shown(max_epochs)}\n"
            "  Its sources differ in how long their epochs are: give it to them."
        )
    if isinstance(max_epochs, bool) or not isinstance(max_epochs, Integral) or max_epochs < 1:
        raise ValueError(
            f"{who}: expected a whole number of epochs from 1 on as max_epochs, got {shown(max_epochs)}\n"
            "  Without it the number of epochs is not bounded."
        )


def _check_holdout(dataset: Any, who: str) -> None:
    try:
        part, parts = part_of(dataset), range_of(dataset)
    except ValueError as error:
        raise ValueError(f"{who}: {error}") from None
    if parts is not None and (isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__")):
        raise ValueError(
            f"{who}: expected parts of a map-style dataset, got the {parts}\n"
            "  Records of shards are held out by a hash: give holdout and part to a source of them."
        )
    if part is not None and isinstance(dataset, MixtureSettings):
        raise ValueError(
            f"{who}: expected no holdout of a mixture, got the {part}\n"
            "  Its records are those of its sources: give holdout and part to them."
        )


def _check_own_stream(dataset: Any, who: str) -> None:
    lanes = getattr(dataset, "lanes", None)
    if not is_own_stream(dataset) or isinstance(dataset, MixtureSettings | ShardDataset):
        if isinstance(lanes, str) and lanes in LANES:  # a dataset's own attribute may have the name
            raise ValueError(
                f"{who}: expected no lanes, got {shown(lanes)}\n"
                "  It says how lanes share an iterable; records of all other sources are dealt out to them."
            )
        return
    if (together := getattr(dataset, "records_per_block", None)) is not None:
        raise ValueError(
            f"{who}: expected no records_per_block of an iterable, got {shown(together)}\n"
            "  Its records come in its own order."
        )
    if lanes is not None and lanes not in LANES:
        raise ValueError(
            f"{who}: expected one of {', '.join(LANES)} as lanes, got {shown(lanes)}\n"
            "  self: it asks itself which worker it is in. stride: each lane keeps every so-many-th of its records."
        )
    if part_of(dataset) is not None:
        raise ValueError(
            f"{who}: expected no holdout of an iterable, got the {part_of(dataset)}\n"
            "  A record is held out by its number, and an iterable's have none: filter in a process function."
        )


def _check_functions(dataset: Any, who: str) -> None:
    for name in ("single_process_fn", "process_fn"):
        function = getattr(dataset, name, None)
        if function is None:
            continue
        several = function if name == "process_fn" and isinstance(function, list) and function else [function]
        for one in several:
            _check_function(one, who, name)
            if len(several) > 1 and is_stateful(one):
                raise ValueError(
                    f"{who}: {name}: expected functions without state_dict in a list, got {shown(one)}\n"
                    "  Which of its records are still needed, only one function can say: write one that calls them."
                )


def _check_function(function: Any, who: str, name: str) -> None:
    if is_stage(function):
        raise ValueError(
            f"{who}: {name}: expected webdataset's stage {function.__name__.lstrip('_')} with its "
            "parameters, got it without\n  Call it; in a recipe write 'params: {}' beside its target."
        )
    if not callable(function):
        raise ValueError(
            f"{who}: expected a function as {name}, got {shown(function)}\n"
            f"  In a recipe a function is named by a target: '{name}: {{target: my_pkg.my_fn}}'."
        )


def _check_of_top(dataset: Any, who: str) -> None:
    if not isinstance(dataset, MixtureSettings):
        return
    if dataset.skip is not None:
        raise ValueError(
            f"{who}: expected no `skip` in a mixture below another one, got one\n"
            "  Give it to the top mixture, with the paths of sources from there."
        )
    for name in ("read_ahead_bytes", "connections"):
        if (value := getattr(dataset, name)) is not None:
            raise ValueError(
                f"{who}: expected no `{name}` in a mixture below another one, got {shown(value)}\n"
                "  Give it to the top mixture: it is for all sources of a process together."
            )


def _check_once(top: Node) -> None:
    """The same object twice would be read twice under two names, or share what its functions hold."""
    seen: dict[int, str] = {}
    for node in top.walk():
        if id(node.dataset) in seen:
            raise ValueError(
                f"MergedDataset: {shown(node.path)} is the same object as {shown(seen[id(node.dataset)])}\n"
                "  Build it twice, or raise its percent."
            )
        seen[id(node.dataset)] = node.path


def _check_no_schedule_below(child: Node) -> None:
    """Refuse a schedule whose time nobody could tell: what a yield function will pull, the top has not drawn yet."""
    if child.dataset.customized_yield_fn is not None and child.has_schedule:
        name = shown(child.dataset.name)
        raise ValueError(
            f"MergedDataset, mixture {name}{in_recipe(child.dataset)}: expected constant percents in a mixture with a "
            "customized_yield_fn that is within another mixture, and in all below it, got a schedule\n"
            f"  Give the schedule to the percent of {name} itself, list its sources in the top mixture, which may have "
            "both, or make the function the process_fn of each source."
        )


def _check_end(parent: MixtureSettings, mixture: MixtureSettings) -> None:
    """Whether a mixture within another one ends where that does."""
    if parent.cyclic and not mixture.cyclic:
        name, outer = shown(mixture.name), getattr(parent, "name", None)  # in a recipe it is set later
        around = "the mixture around it" if outer is None else f"the mixture {shown(outer)} around it"
        raise ValueError(
            f"MergedDataset, mixture {name}{in_recipe(mixture)}: expected cyclic=True, as of {around}, "
            "got cyclic=False\n"
            f"  A stream that goes on cannot hold one that ends. Write `cyclic: true` in {name}, or list its sources "
            f"in {around}, or write `cyclic: false` in {around}, too."
        )
    if not parent.cyclic and parent.stop == "all_exhausted" and mixture.cyclic:
        raise ValueError(
            f"MergedDataset: stop='all_exhausted' waits forever for {shown(mixture.name)}, which is cyclic\n"
            "  Give that mixture cyclic=False, or stop at the first that is exhausted."
        )

"""Refuses what cannot be streamed: sources and readers that do not fit.

1. sources → `check_sources` → an error where the mixture is built, with the recipe's line
2. a DataLoader with torch's `default_collate` → `refuse_default_collate`; one that divides the stream once more among
   ranks → `check_not_wrapped`
"""

import math
import sys
from collections.abc import Iterable
from io import BytesIO
from multiprocessing.reduction import ForkingPickler
from numbers import Integral, Real
from types import FrameType
from typing import Any, Final, NoReturn

from torch.utils.data import IterableDataset, default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from streamdata.errors import StateError, shown
from streamdata.mixing.tree import MixtureSettings, Node, in_recipe, tree_of
from streamdata.recipe.named_source import NamedSource, PartRange, check_name, read_percent
from streamdata.recipe.targets import is_stage
from streamdata.sources.files.shard_source import ShardDataset
from streamdata.sources.foreign.named import check_dataset, is_own_stream, leave_out_filtered
from streamdata.sources.foreign.own_stream import LANES
from streamdata.sources.functions.starts import is_stateful
from streamdata.sources.order.blocks import Part, selection_of
from streamdata.states.cursor import NodeKey

_MAX_PASS: Final = 2**53

FACTORS: Final = ("length", "length_multiplier", "length_divisor")
"""The attributes of a source that say how many samples an epoch of it has."""


def check_sources(mixture: MixtureSettings) -> None:
    """Check the sources of a mixture; mixtures among them were checked when they were built.

    Raises:
        ValueError: There are no sources, one twice, a name missing, double or with a ".", a `percent` that is not
            valid or does not go with those beside it, a `max_bad` or `max_epochs` that is not a count, a `holdout` or
            `part` that is not valid, something that is not a function or not a source, or mixtures whose ends do not
            fit together.
    """
    if not mixture.datasets:
        raise ValueError("MergedDataset: expected at least one source in datasets, got none")
    places: dict[str, str] = {}
    for number, dataset in enumerate(mixture.datasets):
        who = f"MergedDataset, source {number} ({type(dataset).__name__}){in_recipe(dataset)}"
        is_foreign = not isinstance(dataset, NamedSource)
        if is_foreign:
            check_dataset(dataset, who)
        name: Any = getattr(dataset, "name", None)
        is_named = False
        try:
            check_name(name, places)
            is_named = True
            _check_numbers(dataset)
            _check_functions(dataset)
            if is_foreign:
                leave_out_filtered(dataset)
            _check_division(dataset)
        except ValueError as error:
            raise ValueError(f"{who}{f', {shown(name)}' if is_named else ''}: {error}") from None
        places[name] = in_recipe(dataset).strip() or f"as source {number}"
    _check_weights(mixture)
    for child in tree_of(mixture).children:
        if child.is_mixture:
            check_nested(mixture, child)


def _check_weights(mixture: MixtureSettings) -> None:
    """Check that weights go together, and that no object is there twice."""
    top, first = tree_of(mixture), mixture.datasets[0]
    if not top.children:
        raise ValueError(
            f"MergedDataset{in_recipe(first)}, {shown(first.name)}: expected a positive number as percent, got 0\n"
            "  0 leaves a source out, and here all are left out."
        )
    cost = mixture.cost
    if cost is not None and not callable(cost) and not (isinstance(cost, str) and cost):
        raise ValueError(
            f"MergedDataset: expected a function of a sample, or the name of a field, as cost, got {shown(cost)}"
        )
    seen: dict[int, str] = {}
    for node in top.walk():  # read under two names, it would share what its functions hold
        if id(node.dataset) in seen:
            raise ValueError(
                f"MergedDataset: {shown(node.path)} is the same object as {shown(seen[id(node.dataset)])}\n"
                "  Build it twice, or raise its percent."
            )
        seen[id(node.dataset)] = node.path
    try:
        _ = top.shares  # those of mixtures within it were checked with these
    except ValueError as error:
        raise ValueError(f"MergedDataset: {error}") from None


def _check_numbers(dataset: Any) -> None:
    read_percent(getattr(dataset, "percent", None))
    max_bad, max_epochs = getattr(dataset, "max_bad", 0), getattr(dataset, "max_epochs", None)
    if isinstance(max_bad, bool) or not isinstance(max_bad, Integral) or int(max_bad) < 0:
        raise ValueError(
            f"expected a whole number of failures as max_bad, got {shown(max_bad)}\n"
            "  It is how many may be skipped per lane; a percentage is understood by `streamdata prepare` alone."
        )
    if max_epochs is not None and isinstance(dataset, MixtureSettings):
        raise ValueError(
            f"expected no max_epochs of a mixture, got {shown(max_epochs)}\n"
            "  Its sources differ in how long their epochs are: give it to them."
        )
    if max_epochs is not None and not (is_length(max_epochs) and isinstance(max_epochs, Integral)):
        raise ValueError(
            f"expected a whole number of epochs from 1 on as max_epochs, got {shown(max_epochs)}\n"
            "  Without it the number of epochs is not bounded."
        )
    weight_field, kind = getattr(dataset, "weight_field", None), None if isinstance(dataset, MixtureSettings) else str
    if weight_field is not None and type(weight_field) is not kind:
        raise ValueError(
            f"expected the name of a field of its records as weight_field, got {shown(weight_field)}\n"
            "  It is an attribute of sources, not of mixtures; leave it out where all records count alike."
        )
    for name in FACTORS:
        value = getattr(dataset, name, None)
        # webdataset's pipelines say -1 where they do not know; others have a method of that name.
        if not (value is None or callable(value) or (name == "length" and value == -1) or is_length(value)):
            raise ValueError(
                f"expected a number above 0 as {name}, got {shown(value)}\n"
                "  An epoch has length * length_multiplier / length_divisor samples; without length, its records count."
            )


def is_length(value: Any) -> bool:
    """Whether a value is valid as a length or as a factor of one: a positive finite number."""
    return not isinstance(value, bool) and isinstance(value, Real) and 0 < float(value) < math.inf


def checked_stall_s(stall_s: Any, who: str) -> float:
    """Return a `stall_s` as it is.

    Raises:
        ValueError: It is neither None nor a positive, finite number.
    """
    if not is_length(stall_s):
        raise ValueError(
            f"{who}: expected a positive number of seconds as stall_s, got {shown(stall_s)}\n"
            "  A record that takes longer is named in the log; None watches nothing."
        )
    return float(stall_s)


def _check_division(dataset: Any) -> None:
    """Check what says which records are read, and how lanes share them."""
    part, lanes = selection_of(dataset), getattr(dataset, "lanes", None)
    has_length = hasattr(dataset, "__len__") and not isinstance(dataset, IterableDataset)
    if isinstance(part, PartRange) and not has_length:
        raise ValueError(
            f"expected parts of a map-style dataset, got the {part}\n"
            "  Records of shards are held out by a hash: give holdout and part to a source of them."
        )
    if isinstance(part, Part) and isinstance(dataset, MixtureSettings):
        raise ValueError(
            f"expected no holdout of a mixture, got the {part}\n"
            "  Its records are those of its sources: give holdout and part to them."
        )
    if isinstance(dataset, MixtureSettings | ShardDataset) or not is_own_stream(dataset):
        if isinstance(lanes, str) and lanes in LANES:  # a dataset's own attribute may have the name
            raise ValueError(
                f"expected no lanes, got {shown(lanes)}\n"
                "  It says how lanes share an iterable; records of all other sources are dealt out to them."
            )
        return
    if (together := getattr(dataset, "records_per_block", None)) is not None:
        raise ValueError(
            f"expected no records_per_block of an iterable, got {shown(together)}\n  Its records come in its own order."
        )
    if lanes is not None and lanes not in LANES:
        raise ValueError(
            f"expected one of {', '.join(LANES)} as lanes, got {shown(lanes)}\n"
            "  self: it asks itself which worker it is in. stride: each lane keeps every so-many-th of its records."
        )
    if isinstance(part, Part):
        raise ValueError(
            f"expected no holdout of an iterable, got the {part}\n"
            "  A record is held out by its number, and an iterable's have none: filter in a process function."
        )


def _check_functions(dataset: Any) -> None:
    for name in ("single_process_fn", "process_fn"):
        function = getattr(dataset, name, None)
        several: list[Any] = (
            function if name == "process_fn" and isinstance(function, list) and function else [function]
        )
        for one in several if function is not None else ():
            if is_stage(one):
                raise ValueError(
                    f"{name}: expected webdataset's stage {one.__name__.lstrip('_')} with its "
                    "parameters, got it without\n  Call it; in a recipe write 'params: {}' beside its target."
                )
            if not callable(one):
                raise ValueError(
                    f"expected a function as {name}, got {shown(one)}\n"
                    f"  In a recipe a function is named by a target: '{name}: {{target: my_pkg.my_fn}}'."
                )
            _check_place(one, name)
            if len(several) > 1 and is_stateful(one):
                raise ValueError(
                    f"{name}: expected functions without state_dict in a list, got {shown(one)}\n"
                    "  Which of its records are still needed, only one function can say: write one that calls them."
                )


def _check_place(function: Any, what: str) -> None:
    """Refuse a function that says that it can only be the `customized_yield_fn` of the top."""
    if reason := getattr(function, "only_at_top", None):
        raise ValueError(
            f"{what}: expected a function that can be elsewhere than at the top, got {reason}\n"
            "  Make it the customized_yield_fn of the outermost mixture, or leave balance out."
        )


def check_nested(parent: MixtureSettings, child: Node) -> None:
    """Check that a mixture within another one ends where that does, and has nothing that is the top's alone.

    Nor may it have a schedule whose time nobody could tell: what a yield function will pull, the top has not drawn yet.
    """
    mixture = child.dataset
    for setting in ("skip", "read_ahead_bytes", "connections", "stall_s"):
        if (value := getattr(mixture, setting)) is not None:
            raise ValueError(
                f"MergedDataset, mixture {shown(mixture.name)}{in_recipe(mixture)}: expected no `{setting}` in a "
                f"mixture below another one, got {shown(value)}\n"
                "  Give it to the top mixture, where it is for all sources, which are named by their paths from it."
            )
    _check_place(mixture.customized_yield_fn, f"MergedDataset, mixture {shown(mixture.name)}{in_recipe(mixture)}")
    if mixture.customized_yield_fn is not None and child.has_schedule:
        name = shown(mixture.name)
        raise ValueError(
            f"MergedDataset, mixture {name}{in_recipe(mixture)}: expected constant percents in a mixture with a "
            "customized_yield_fn that is within another mixture, and in all below it, got a schedule\n"
            f"  Give the schedule to the percent of {name} itself, list its sources in the top mixture, which may have "
            "both, or make the function the process_fn of each source."
        )
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


_FUNCTIONS: Final = ("single_process_fn", "process_fn", "customized_yield_fn", "cost")


def check_picklable(nodes: Iterable[Node], dynamic_objects: Iterable[tuple[str, object]]) -> None:
    """Check that what goes to workers of their own start can be pickled; the error of what cannot names it in a note.

    Args:
        nodes: Of the tree, where multiprocessing pickles: another pickler, such as Ray's, may take what that does not.
        dynamic_objects: Those of the recipe, with their locations.
    """
    checked = [
        (value, f"{location}: this dynamic object, of type {type(value).__name__}, cannot be pickled to workers")
        for location, value in dynamic_objects
    ]
    for node in nodes:
        who = f"source {shown(node.path)}" if node.path else "the mixture"
        remedy = "Define it at the top of a module, or fork workers: multiprocessing_context='fork'."
        checked += [
            (function, f"{who}: {name} cannot be pickled to a worker of its own start\n  {remedy}")
            for name in _FUNCTIONS
            if (function := getattr(node.dataset, name, None)) is not None
        ]
    for value, why in checked:
        try:
            ForkingPickler(BytesIO()).dump(value)
        except Exception as error:
            error.add_note(why)
            raise


_FETCHES: Final = "torch.utils.data._utils.fetch"
"""The module whose code asks a dataset for the samples of a batch, and collates them."""


def refuse_default_collate() -> None:
    """Raise if the DataLoader that asks for the first sample would pass it to `default_collate`.

    That would stack every field, those with the stream's state too; where sources have different fields, such as
    `__key__` and `__index__`, it would end in a KeyError that names none of this.

    Asked by another function that gives samples to `default_collate`, torch finds in its table of types that what tells
    the state in each of them cannot be collated: the table is what torch documents for extending it.

    Raises:
        StateError: The DataLoader uses `default_collate`.
    """
    default_collate_fn_map[NodeKey] = _refuse
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  what the inspect module itself uses
    while frame is not None and frame.f_globals.get("__name__", "").startswith("streamdata."):
        frame = frame.f_back
    if frame is not None and frame.f_globals.get("__name__") == _FETCHES:
        fetcher = frame.f_locals.get("self")
        if getattr(fetcher, "collate_fn", None) is default_collate:
            _refuse()


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise StateError(
        "MergedDataset: torch's default_collate cannot make a batch of its samples, which carry the stream's state\n"
        "  Write StreamLoader(dataset, batch_size) in place of the DataLoader; or give it collate_fn=TensorCollate() "
        "for dicts of tensors, or collate_fn=mixed_collate for lists of samples."
    )


_PACKAGES: Final = ("accelerate", "transformers")
_WRAPPERS: Final = {
    "DataLoaderDispatcher": "reads the stream on rank 0 alone, which has one of {} shares of it",
    "IterableDatasetShard": "keeps one batch of {} of each rank's own share, and drops the others",
}
"""How Accelerate, and HF Trainer through it, share out a stock DataLoader: as if each rank read the whole stream."""


def check_not_wrapped(dp_size: int) -> None:
    """Raise if the stream is read through a wrapper that divides it among ranks once more.

    The wrappers do not inspect the dataset that they wrap, and the dataset sees them only while they call it. Each
    time that they begin to iterate, both call `set_epoch` of it in the trainer's process, on all ranks, so that none
    waits for another that has failed. Beside that they are on the stack when `iter` is called: in the trainer without
    workers, in workers that are forked, and `IterableDatasetShard` in all.

    Raises:
        ValueError: Such a wrapper reads the stream.
    """
    if dp_size == 1:
        return
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  what the inspect module itself uses
    while frame is not None:
        # Not isinstance: Accelerate's loaders say that they are of the class that they wrap.
        bases = type(frame.f_locals.get("self")).__mro__
        found = (base.__name__ for base in bases if base.__module__.partition(".")[0] in _PACKAGES)
        if (name := next((name for name in found if name in _WRAPPERS), None)) is not None:
            raise ValueError(
                f"MergedDataset: Accelerate's {name} {_WRAPPERS[name].format(dp_size)}: the rest of the data would "
                "never be read\n"
                "  Write StreamLoader(dataset, batch_size, num_workers) in place of the DataLoader: `prepare` leaves "
                "it alone, and a Trainer takes it from get_train_dataloader. Or call "
                "dataset.set_data_parallel(1, 0), and the wrapper divides the whole stream."
            )
        frame = frame.f_back


def checked_pass(epoch_pass: int, who: str) -> int:
    """Return the number of a pass.

    Raises:
        ValueError: It is none.
    """
    if type(epoch_pass) is not int or not 0 <= epoch_pass < _MAX_PASS:
        raise ValueError(f"{who}: expected an int >= 0 and below 2**53, got {shown(epoch_pass)}")
    return epoch_pass

"""Saving: one folder for each step, one file for each rank, and one of what the run had come to under earlier sizes.

Both are JSON, compressed by gzip, whose sum shows when one is torn or damaged. A rank's file has its cursors as a list
for each field, which reads many times as fast as a dict for each cursor. The other file may be large; it is the same
for all ranks, and named by its digest.
"""

import gzip
import json
import re
import secrets
import weakref
import zlib
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import orjson

from streamdata.errors import StateError, shown
from streamdata.run import MAX_RANKS, DataParallel, find_data_parallel
from streamdata.run.publish import make_directory, publish
from streamdata.run.topology import distributed_if_joined
from streamdata.states.cursor import is_asked, not_there
from streamdata.states.headers import DAMAGE, DEAL, canonical, digest_of
from streamdata.states.table import LoadedStates, StatesTable, checked_entry, join, owner_of, table_of

VERSION: Final = 4
# No leading zeros: two folders would be the same step, and two files the same rank.
STEP_NAME: Final = re.compile(r"step-(0|[1-9]\d*)")
FILE_NAME: Final = re.compile(r"rank-(0|[1-9]\d*)\.states")
TORN: Final = (OSError, EOFError, zlib.error)
"""Exceptions of decompressing a torn file, beside `DAMAGE`."""


watched: "weakref.WeakSet[Any]" = weakref.WeakSet()
"""The datasets of this process, each with an `is_to_be_saved`."""
_loaded: Final[deque[str]] = deque(maxlen=1024)
"""The digests of states that this process has loaded: a job loads once, a notebook may look at many steps."""


_GROUP_KEY: Final = "streamdata/group"
_names: "weakref.WeakKeyDictionary[Any, str | None]" = weakref.WeakKeyDictionary()
"""Names of process groups: a store may die with another rank, and is then not to be waited for."""


@dataclass(frozen=True, kw_only=True)
class RankStates:
    """The states of one rank, as saved in a file or sent to the other ranks."""

    name: str
    """For messages: the file's path, or the rank."""
    rank: int
    size: int
    """How many ranks there are."""
    step: int
    group: str | None = None
    """Names the ranks that saved together, as far as they have a process group; None where nobody knows."""
    table: StatesTable = field(default_factory=StatesTable)

    @property
    def facts(self) -> dict[str, Any]:
        """Facts on which the ranks of a run agree at one step, for `check_one_run`."""
        headers = self.table.only_headers().others
        # A rank that has delivered nothing since the size changed is of another size than the others. One of the same
        # size has begun without what the others had loaded.
        sizes = {f"deal of {h['dp_size']} ranks with {h['num_workers']} workers": h["deal"] for h in headers.values()}
        return {"step": self.step, "size": self.size, "group": self.group, **headers, **sizes}


class MemberStates(dict[str, Any]):
    """The states of a replica that is several processes, each of which has them: the first one saves them.

    Args:
        states: The states.
        replica: Which one it is.
        is_first: Whether this process is its first one.
    """

    def __init__(self, states: Mapping[str, Any], replica: DataParallel, *, is_first: bool) -> None:
        super().__init__(states)
        self.replica, self.is_first = replica, is_first

    def __reduce__(self) -> tuple[Any, ...]:
        # Within a trainer's checkpoint: torch.load takes an OrderedDict, and no class of ours.
        return OrderedDict, (), None, None, iter(self.items())


def save_states(
    directory: str | Path, states: Mapping[str, Any], *, step: int, rank: int | None = None, size: int | None = None
) -> None:
    """Saves a rank's states; call it on every rank, also on one that has delivered nothing.

    Of a `GroupLoader`'s states it knows the rank, and does nothing but in the group's first process.

    Writes `directory/step-STEP/rank-RANK.states`, which is there in full or not at all, also after a power cut, and
    beside it, once for all ranks, what the run had come to under earlier sizes: a step needs no other folder.

    Args:
        directory: A directory, the same for all ranks and steps.
        states: The result of `load_states`, or a dict, updated with `to_state` of each batch since.
        step: The trainer's step, the same on all ranks.
        rank: The rank of this data-parallel replica; give it with `size` under tensor or pipeline parallelism. By
            default the process group's, else RANK and WORLD_SIZE, else there is one replica.
        size: The number of replicas.

    Raises:
        StateError: The states do not come from `to_state`, or from a run with another number of ranks; or they are
            empty after step 0, while a dataset of this process has delivered samples and `to_state` was never called.
        ValueError: The step is not a number from 0, or one of rank and size is missing or wrong.
        OSError: The directory cannot be written.
    """
    if type(step) is not int or not 0 <= step < 2**53:
        raise ValueError(f"save_states: expected a step from 0 on, an int below 2**53, got {shown(step)}")
    of = replica_of("save_states", rank, size, states)
    if isinstance(states, MemberStates) and not states.is_first:
        return
    part, deal = part_of_rank(states, of)
    if step and not (part or deal or is_asked.is_set()) and any(dataset.is_to_be_saved() for dataset in list(watched)):
        raise StateError(
            f"save_states: expected states of what was delivered in {step} steps, got none, and nobody has asked for "
            "some: a resume would begin at sample 0\n"
            "  Call states.update(to_state(batch)) for every batch, or save StreamLoader.state_dict()."
        )
    # Otherwise each replica may have a process group of its own.
    group = group_name() if rank is None and not isinstance(states, MemberStates) else None
    folder = Path(directory) / f"step-{step}"
    make_directory(folder)
    # Before its own file is there: until then the step lacks rank 0, and cannot be taken for one of both runs.
    # And the files of ranks that this run does not have, of a run of more ranks that was at this step: no rank of this
    # one writes them, so that none can lose its own; the others' are replaced by their ranks.
    for path in folder.iterdir() if of.dp_rank == 0 else ():
        name = FILE_NAME.fullmatch(path.name)
        if name and int(name[1]) >= of.dp_size:
            path.unlink()
    # Before the file that names it; without a time: the same bytes from each rank, whichever is first.
    if deal is not None and not (path := folder / deal_file(deal[0])).exists():
        text = canonical(deal[1])
        if digest_of(text) != deal[0]:
            raise StateError("states: the entry 'deal/…' is not the one that generations name\n  Save the whole dict.")
        publish(path, [gzip.compress(text.encode(), 6, mtime=0)])
    own = RankStates(name="", rank=of.dp_rank, size=of.dp_size, step=step, group=group, table=part)
    publish(folder / f"rank-{of.dp_rank}.states", [_encoded(own)])


def group_name() -> str | None:
    """A name of the process group, equal on all its ranks and unique; None without a group.

    Whoever asks first makes it up, in the store by which the ranks have met: nobody waits for another rank.
    """
    if not (distributed := distributed_if_joined()):
        return None
    group = distributed.group.WORLD
    if group not in _names:
        try:
            _names[group] = store_of_group().compare_set(_GROUP_KEY, "", secrets.token_hex(8)).decode()
        except (RuntimeError, AttributeError):  # there is none; or the rank that holds it has died
            _names[group] = None
    return _names[group]


def store_of_group() -> Any:
    """The store by which the ranks of the process group have met; None without one, as under MPI."""
    if not (distributed := distributed_if_joined()):
        return None
    try:
        return distributed.distributed_c10d._get_default_store()  # noqa: SLF001  (there is no other way to it)
    except RuntimeError:
        return None


def part_of_rank(states: Mapping[str, Any], group: DataParallel) -> tuple[StatesTable, tuple[str, Any] | None]:
    """Select the entries that a rank saves: its own since the size last changed, and the deal header with its digest.

    While it has delivered nothing since it loaded states of another size, rank 0 saves those for all.

    Raises:
        StateError: The states do not come from `to_state`, or from a run with another number of ranks.
    """
    # What was written since is not sorted in among all ranks' at every step: a rank's own are few.
    parts = [states.loaded, states.written] if isinstance(states, LoadedStates) else [states]
    tables = list(map(table_of, parts))
    headers = {number: header for table in tables for number, header in table.headers.items()}
    if not headers:
        if any(map(len, tables)):
            raise not_there("generation/…")
        return StatesTable(), None
    newest = headers[max(headers)]
    key = f"{DEAL}{newest['deal']}"
    deals = [table.others[key] for table in tables if key in table.others]
    if newest["deal"] and not deals:
        raise not_there(key)
    deal = (newest["dealt"], deals[-1]) if deals else None
    if newest["dp_size"] != group.dp_size:
        if table_of(states).present().digest not in _loaded:
            raise StateError(
                f"states: they are of dp_size={newest['dp_size']}, got size={group.dp_size}\n"
                "  Under tensor or pipeline parallelism give save_states rank and size of the data-parallel replicas."
            )
        # Its ranks are not those of this run: whichever rank has delivered something since has a newer header.
        return (join(tables).present(), deal) if group.dp_rank == 0 else (StatesTable(), None)
    own = join([table.of_ranks([group.dp_rank], newest["deal"]) for table in tables])
    generations = {*own.rows["generation"].tolist(), *(owner_of(key).generation for key in own.others)}
    if missing := generations - headers.keys():
        raise not_there(f"generation/{min(missing)}")
    # Its own headers alone: of a generation in which it has delivered nothing other ranks have it. But for weights that
    # were set after the last batch.
    if "set_percents" in newest:
        generations.add(max(headers))
    needed = {f"generation/{number}": headers[number] for number in sorted(generations)}
    return StatesTable(own.paths, own.rows, {**needed, **own.others}), deal


def remember(states: StatesTable) -> None:
    """Note the digest of states that were loaded or set, so that unchanged states are recognised later."""
    # By content: a plain dict has it, too, and so has what a trainer wrote and read by its own means.
    if states.digest not in _loaded:
        _loaded.append(states.digest)


def _encoded(own: RankStates) -> bytes:
    """A rank's file."""
    columns, others = own.table.as_columns(), own.table.others.items()
    content = {
        "streamdata_states": VERSION,
        **{name: getattr(own, name) for name in ("rank", "size", "step", "group")},
        # As texts: headers are the same in most files, and parsed once.
        "headers": {key: canonical(value) for key, value in others if key.startswith("generation/")},
        "entries": {key: value for key, value in others if not key.startswith(("generation/", DEAL))},
        **columns,
        # The standard library's JSON for what functions return: orjson would read long integers as floats.
        "rare": json.dumps(columns["rare"]),
    }
    return gzip.compress(orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY), 1, mtime=0)


def decode(name: str, content: bytes) -> RankStates:
    """Decode the content of a rank's file.

    Raises:
        StateError: The content is torn, damaged, or not of such a file; the message begins with `name`.
    """
    try:
        value = orjson.loads(gzip.decompress(content))
        version = value["streamdata_states"]
    except (*TORN, *DAMAGE) as error:
        raise StateError(
            f"{name}: expected a rank's states, got {len(content)} bytes that are not such a file from end to end: it "
            f"is torn or damaged ({error})\n  Restore it, or delete it: then its rank is missing at this step."
        ) from error
    if version != VERSION:
        raise StateError(f"{name}: written by another version of streamdata\n  Read it with that version.")
    try:
        origin = {name: value[name] for name in ("rank", "size", "step", "group")}
        if not 0 <= origin["rank"] < origin["size"] <= MAX_RANKS:
            raise ValueError(f"rank {origin['rank']} of {origin['size']}")
        # The rows are as they were when they were checked, in saving: the sum says so.
        held = value | {"rare": json.loads(value["rare"])}
        others = {key: _parsed(key, header) for key, header in value["headers"].items()}
        others |= {key: checked_entry(key, entry) for key, entry in value["entries"].items()}
        return RankStates(name=name, **origin, table=StatesTable.of_columns(held, others))
    except DAMAGE as error:
        why = f"{type(error).__name__}: {str(error)[:200]}"
        raise StateError(
            f"{name}: does not come from save_states ({why})\n  Delete it: then its rank is missing."
        ) from error


_parsed: Callable[[str, str], Any] = lru_cache(maxsize=64)(lambda key, text: checked_entry(key, json.loads(text)))
"""Parses a header, and checks it: once for the files of all ranks, which share one with a line for every source."""


def deal_file(digest: str) -> str:
    """The name of the file that holds a deal header, by its digest."""
    return f"deal-{digest}.json.gz"


def replica_of(who: str, rank: int | None, size: int | None, states: Mapping[str, Any]) -> DataParallel:
    """The replica that the caller gives, by default the one that the states are known to be of, or this process.

    Raises:
        ValueError: One of rank and size is missing or wrong.
    """
    if rank is None and size is None:
        return states.replica if isinstance(states, MemberStates) else find_data_parallel()
    if rank is None or size is None:
        raise ValueError(f"{who}: expected both rank and size, or neither, got rank={rank}, size={size}")
    return DataParallel(dp_size=size, dp_rank=rank)

"""Loading: the newest step that all ranks have saved, one that is asked for, or whatever lies at some paths.

A step's folder has a file for each rank, and is whole if none is missing.
"""

import gzip
import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from streamdata.errors import StateError, one_line, place_of_io, shown
from streamdata.recipe.limits import open_regular
from streamdata.states.headers import DAMAGE, check_one_run, digest_of
from streamdata.states.joining import join_ranks
from streamdata.states.progress import Progress
from streamdata.states.saving import FILE_NAME, STEP_NAME, TORN, RankStates, deal_file, decode, remember
from streamdata.states.table import LoadedStates

logger = logging.getLogger("streamdata")
_MAX_NAMED = 30
_GZIP = b"\x1f\x8b"
"""How a rank's file begins, even if the rest is torn."""


class NoStepError(StateError, FileNotFoundError):
    """The directory holds no saved states, or not the requested step."""


class ReadStates(NamedTuple):
    """States read from files, with a name of where they come from."""

    states: Mapping[str, Any]
    origin: str
    """The step and ranks, or the counts of a ledger; empty where the files do not name them."""
    step: int | None
    """The step as the training loop counted it; None where the files do not name it."""


def load_states(directory: str | Path, *, step: int | None = None) -> LoadedStates:
    """Loads the states of all ranks, for `set_dataloader_states` on any number of ranks, and for further updates.

    Args:
        directory: The directory given to `save_states`.
        step: The step to load; by default the newest that all ranks have saved. Newer steps that lack a rank are
            skipped with a warning.

    Returns:
        A mapping with the keys and values of the flat dict, whose attribute `step` says which step it is.

    Raises:
        NoStepError: The directory holds no states, or not this step. NoStepError is a FileNotFoundError.
        StateError: No step has all ranks; the step is not 0, and no rank's has an entry; or a file is torn, missing, or
            of another step, rank or number of ranks than its name and the other files say.
        ValueError: `step` is no int.
    """
    # As text, 9 would find the folder, and no file in it that is of that step.
    if step is not None and type(step) is not int:
        raise ValueError(f"load_states: expected an int as step, got {shown(step)}")
    passed_over: list[str] = []
    # Read, not only listed: a torn file in a newer step is an error, however complete an older one is.
    for number in _steps_in(Path(directory)) if step is None else [step]:
        saved, folder = read_step(Path(directory), number), Path(directory) / f"step-{number}"
        missing = sorted(set(range(saved[0].size)) - {part.rank for part in saved}) if saved else []
        if saved and not missing:
            break
        # Of an empty folder nobody knows how many ranks there were.
        lacking = f"{named_ranks(missing)} of {saved[0].size}" if saved else "every rank"
        passed_over.append(f"{folder}: this step lacks {lacking}")
    else:
        raise StateError("\n".join(passed_over[:10]) + "\n  Load another step, or start without states.")
    for line in passed_over:
        logger.warning("states: passed over: %s", one_line(line))
    states = LoadedStates(join_ranks(saved, _deals(saved)), step=number)
    if number and not states:
        raise StateError(
            f"{folder}: expected states of what was delivered, got none of any rank: a resume would begin at "
            "sample 0\n  Start without states, or load another step; the training has to save what to_state gives."
        )
    remember(states.loaded)
    logger.info("states: step %d of %d ranks, from %s", number, len(saved), one_line(directory))
    return states


def _steps_in(directory: Path) -> list[int]:
    """The steps of which there is a folder, the newest first.

    Raises:
        NoStepError: There is none.
    """
    names = [path.name for path in directory.iterdir()] if directory.is_dir() else []
    steps = [int(match[1]) for match in map(STEP_NAME.fullmatch, names) if match]
    if not steps:
        raise NoStepError(f"{directory}: no states are saved there\n  Start without states, or name the directory.")
    # As numbers: as text 9 would come after 10.
    return sorted(steps, reverse=True)


def read_step(directory: Path, step: int) -> list[RankStates]:
    """Read all files of one step, by rank.

    Raises:
        NoStepError: The step has no folder.
        StateError: A file is torn, or of another step or rank than its name says, or of another run than the others.
    """
    folder = directory / f"step-{step}"
    if not folder.is_dir():
        there = ", ".join(map(str, _steps_in(directory)[:10]))
        raise NoStepError(f"{folder}: this step is not saved, the newest ones are {there}\n  Load one of them.")
    named = {int(match[1]): path for path in folder.iterdir() if (match := FILE_NAME.fullmatch(path.name))}
    saved = [decode(str(named[rank]), _content(named[rank])) for rank in sorted(named)]
    for rank, part in zip(sorted(named), saved, strict=True):
        if (part.rank, part.step) != (rank, step):
            raise StateError(
                f"{part.name}: expected rank {rank} at step {step}, got a file of rank {part.rank} at step "
                f"{part.step}\n  Restore it under the name that it was saved by, or delete it."
            )
    # Also where a rank is missing: a step that is passed over must not hide a mixture.
    check_one_run((part.name, part.facts) for part in saved)
    return saved


def _deals(saved: Sequence[RankStates]) -> dict[str, Any]:
    """Headers of earlier sizes that files name, by digest; they lie beside them.

    Raises:
        StateError: Such a file is missing, torn, damaged, or not the one of its name.
    """
    deals: dict[str, Any] = {}
    named = {(part.name, h["dealt"]) for part in saved for h in part.table.headers.values() if h["deal"]}
    for path, digest in {Path(name).with_name(deal_file(digest)): digest for name, digest in named}.items():
        if not path.exists():
            raise StateError(
                f"{path}: ranks' files beside it name it, which is missing: what they had delivered under earlier "
                "sizes is in it\n  Restore it, or load another step."
            )
        content = _content(path)
        try:
            text = gzip.decompress(content).decode()
            if digest_of(text) != digest:
                raise ValueError("it is not the one of its name")
        except (*DAMAGE, *TORN) as error:
            raise StateError(
                f"{path}: expected what the run had come to under earlier sizes, got {len(content)} bytes that are "
                f"not such a file from end to end ({error})\n  Restore it, or load another step."
            ) from error
        deals[digest] = json.loads(text)
    return deals


def read_states(paths: Sequence[Path]) -> list[ReadStates]:
    """Read states from files: ranks' files are joined, each other file is read by itself, a ledger's for its stream.

    Args:
        paths: Files, the folder of a step, or the directory of several: then its newest step that all ranks have saved.

    Raises:
        StateError: A file is torn, or holds no states; or ranks' files are not of one step and run.
    """
    saved: list[RankStates] = []
    found: list[ReadStates] = []
    for path in paths:
        if path.is_dir() and not STEP_NAME.fullmatch(path.name):
            states = load_states(path)
            found.append(ReadStates(states.loaded.as_dict(), f"step {states.step}", states.step))
        elif path.is_dir():
            saved += read_step(path.parent, int(path.name.removeprefix("step-")))
        elif (content := _content(path)).startswith(_GZIP):
            saved.append(decode(str(path), content))
        else:
            found.append(ReadStates(*_plain(path, content), None))
    if saved:
        # What is shown may be one rank's file: the others may have delivered, so that nothing of them is recorded.
        check_one_run((part.name, part.facts) for part in saved)
        size, ranks = saved[0].size, sorted(part.rank for part in saved)
        table = join_ranks(saved, _deals(saved), unknown=set(range(size)) - set(ranks))
        which = f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks"
        found.insert(0, ReadStates(table.as_dict(), f"step {saved[0].step}, {which} of {size}", saved[0].step))
    return found


def _plain(path: Path, content: bytes) -> tuple[dict[str, Any], str]:
    """The states of a file in JSON, such as a ledger's, of which is said what `PromptLedger.stats` counted by then."""
    try:
        states, origin = json.loads(content), ""
        if isinstance(states, dict) and "ledger" in states:
            counts, rows = Counter(states["ledger"]["counts"]), states["ledger"]["prompts"]
            counts += Counter(("due", "open")[after < 0] for *_, attempt, after in rows if attempt)
            origin = "prompts: " + ", ".join(f"{name} {counts[name]:,}" for name in sorted(counts))
            states = states["stream"]
        Progress(states)
    except StateError as error:  # it knows keys, and of several files not which one has them
        raise StateError(f"{path}: {error}") from error
    except DAMAGE as error:
        raise StateError(
            f"{path}: expected the state itself, as to_state or PromptLedger.state_dict() gives it, got another: "
            f"{error!r:.100}\n  Of a checkpoint that has it among other things, write it to a file of its own."
        ) from error
    return dict(states), origin


def _content(path: Path) -> bytes:
    with place_of_io(path), open_regular(path, StateError) as file:
        return file.read()


def named_ranks(ranks: Sequence[int]) -> str:
    """List ranks in a message, at most 30 of them."""
    more = f" and {len(ranks) - _MAX_NAMED} more" if len(ranks) > _MAX_NAMED else ""
    return ", ".join(f"rank {rank}" for rank in ranks[:_MAX_NAMED]) + more

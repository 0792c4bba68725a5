"""Checks that the functions of a recipe give the same samples again when they are restarted from JSON states."""

import itertools
import json
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from PIL import Image

from streamdata.delivery.collate import memory_of
from streamdata.errors import shown, text_of
from streamdata.fields import CURSOR, STATES
from streamdata.mixing import MergedDataset
from streamdata.mixing.tree import NodeShare
from streamdata.states.cursor import States, to_state
from streamdata.tools.view.tree import functions_of, shares_of


def fingerprint(sample: Mapping[str, Any]) -> dict[str, str]:
    """Digest each field of a sample by type and content, tensors, arrays and images too.

    The private fields with the stream's state are left out: they describe the run, not the sample.
    """
    return {name: _digest(value).hex() for name, value in sample.items() if name not in (CURSOR, STATES)}


def _digest(value: Any) -> bytes:
    hasher = blake2b(digest_size=12)
    for part in _parts(value):
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.digest()


def _parts(value: Any) -> Iterator[bytes]:
    """Yield the name of the type, and what makes two values of it equal."""
    yield type(value).__qualname__.encode()
    if isinstance(value, Mapping):
        yield from sorted(_digest(key) + _digest(part) for key, part in value.items())
    elif isinstance(value, list | tuple):
        yield from map(_digest, value)
    elif isinstance(value, set | frozenset):
        yield from sorted(map(_digest, value))
    elif isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_quantized:
        yield repr((value.dtype, tuple(value.shape))).encode()
        yield memory_of(value.cpu()).numpy().tobytes()
    elif isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        yield repr((value.dtype.str, value.shape)).encode()
        yield value.tobytes()
    elif isinstance(value, Image.Image):
        yield repr((value.mode, value.size)).encode()
        yield value.tobytes()
    else:
        # A user's class may raise anything; such a value cannot reach a trainer, its type alone counts.
        with suppress(Exception):
            yield pickle.dumps(value, protocol=5)


NUM_SAMPLES = 64
STEPS = (1, 5, 14, 30, 47)
"""After which samples to restart: unevenly spaced, so that they meet bursts at several of their places."""

_ADVICE = (
    "  Draw what is random from record_rng(record), in a process function and not in __getitem__; what a function\n"
    "  holds from one burst to the next it must return from state_dict() and restore in load_state_dict(state)."
)


@dataclass(frozen=True, kw_only=True)
class Inexact:
    """A node of the tree whose samples are not the same after a resume.

    Attributes:
        path: Of names, "" at the top.
        functions: The names of its functions, by attribute.
        what: What happened, after which sample.
    """

    path: str
    functions: Mapping[str, str]
    what: str

    def __str__(self) -> str:
        """The finding as a message, with a remedy."""
        functions = ", ".join(f"{attribute} {name}" for attribute, name in self.functions.items())
        who = f"source {shown(self.path)}" if self.path else "the top"
        return f"{who} ({functions or 'no process function; its own __getitem__'}): {self.what}\n{_ADVICE}"


def find_inexact(
    build: Callable[[], MergedDataset], num_samples: int = NUM_SAMPLES, steps: Sequence[int] = STEPS
) -> list[Inexact]:
    """Draw samples, restart in their midst as a new process would, and say whose functions do not go on the same.

    Each source is drawn by itself, so that one with a small weight is checked as well as the others; so is each mixture
    that has a function of its own, unless something below it was found.

    Args:
        build: Builds the dataset anew: once to be drawn from, and once to be restarted.
        num_samples: Of each node.
        steps: After how many samples to restart.

    Raises:
        Exception: What reading the first samples raised.
    """
    found: dict[str, Inexact] = {}
    twins = shares_of(build())
    for path, share in reversed(shares_of(build()).items()):
        functions, below = functions_of(share.node.dataset), f"{path}." if path else ""
        is_known = any(other.startswith(below) for other in found)
        if is_known or (share.node.children and not functions):
            continue
        samples, states, saved = list[dict[str, str]](), States(), dict[int, str]()
        what = ""
        for number, sample in enumerate(itertools.islice(_alone(share), num_samples), 1):
            samples.append(fingerprint(sample))
            states.update(to_state(sample))
            if number in steps:
                try:
                    saved[number] = json.dumps(states)
                except (TypeError, ValueError) as error:
                    what = f"its state after sample {number} is not JSON: {text_of(error)}"
                    break
        again = _alone(twins[path])
        found_at = (_difference(again, state, step, samples, num_samples) for step, state in saved.items())
        if what := what or next(filter(None, found_at), ""):
            found[path] = Inexact(path=path, functions=functions, what=what)
    return list(found.values())


def _alone(share: NodeShare) -> MergedDataset:
    """The node as a stream of its own, in one lane."""
    dataset, parent = share.node.dataset, share.parent
    if not isinstance(dataset, MergedDataset):
        assert parent is not None, "a source has a parent"
        shuffles = parent.shuffle_unstreaming_subsets, parent.shuffle_streaming_subsets
        dataset = MergedDataset([dataset], parent.cyclic, *shuffles, seed=parent.seed)
    dataset.set_data_parallel(1, 0)
    return dataset


def _difference(dataset: MergedDataset, state: str, step: int, samples: Sequence[Mapping[str, str]], most: int) -> str:
    """Say where the stream that is resumed after sample `step` differs from the one that was drawn, if it does."""
    rest, where = samples[step:], f"resumed after sample {step}"
    try:
        stream = dataset.__iter_from__(json.loads(state))
        again = [fingerprint(sample) for sample in itertools.islice(stream, most - step)]
    except Exception as error:  # a user's function may raise anything; here it is the finding
        return f"{where}, it raised {type(error).__name__}: {text_of(error)}"
    for number, (before, after) in enumerate(zip(rest, again, strict=False), step + 1):
        names = [repr(name) for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
        if names:
            return f"{where}, sample {number} differs in {', '.join(sorted(names))}"
    more = f"{where}, it delivered {len(again)} more samples; uninterrupted, {len(rest)}"
    return "" if len(again) == len(rest) else more

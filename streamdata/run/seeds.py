"""Seeds from names, and what follows from them: permutations of [0, n), hashes, and a generator for each record."""

import json
from collections.abc import Mapping
from hashlib import blake2b
from math import isqrt
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from streamdata.errors import names_text
from streamdata.fields import CURSOR, INDEX, KEY, RECORD, SEED, URL


def stable_seed(*parts: object) -> int:
    """Hash `parts` to an int in [0, 2**63).

    The parts are written as JSON, so they may be strings, numbers, None and (nested) sequences of these; a tuple
    equals a list. The hash is BLAKE2b (RFC 7693), never `hash()`, which differs between processes.

    Raises:
        TypeError: A part has no JSON form.
    """
    text = json.dumps(parts, separators=(",", ":"))
    # 63 bits: it also fits where integers are signed, such as NumPy's int64 and the fields of a sample.
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


# With six rounds, the differences between the images of neighbours are uneven for few numbers: of 12, over 6,000 seeds,
# their chi-square is 13 standard deviations from that of random permutations. With eight it is within two. Every order
# that was ever delivered depends on it: it may not change.
_ROUNDS = 8
# An array costs as much as so many numbers one by one; most windows have fewer blocks.
_FEW = 10
# 2**64 by the golden ratio, odd: multiplied by it, consecutive numbers end up far apart in all upper bits.
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)
_MASK = (1 << 64) - 1
_MIXERS = ((np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)), (np.uint64(27), np.uint64(0x94D049BB133111EB)))


class Permutation:
    """A keyed bijection on [0, size): an unbalanced Feistel network with cycle walking.

    A number is split into (left, right) on the grid of a by b with a·b the least such product not below `size`;
    each round adds a hash of one half to the other, modulo its side. What falls outside [0, size) is sent through
    again, which happens to at most about one number in √size. See Black and Rogaway, "Ciphers with arbitrary finite
    domains" (2002).

    Args:
        size: How many numbers, at least 1; 10**9 costs no more than 10.
        seed: The key, in [0, 2**64).
    """

    __slots__ = ("_keys", "_left", "_right", "_words", "size")

    def __init__(self, size: int, seed: int) -> None:
        assert size >= 1, f"a permutation of {size} numbers"
        # Sides as equal as can be: of a by b numbers, fewer than a lie outside and have to be sent through again.
        left = isqrt(size - 1) + 1
        self.size = size
        self._left, self._right = np.uint64(left), np.uint64(-(-size // left))
        # The keys of the rounds; once as Python's integers, for `at`.
        self._keys: list[np.uint64] = list(hashes_of(np.arange(_ROUNDS), np.uint64(seed)))
        self._words = list(map(int, self._keys))

    def __call__(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Map positions, int64 (n,) in [0, size), to their images, int64 (n,)."""
        if len(positions) < _FEW:
            return np.array(list(map(self.at, positions.tolist())), np.int64)
        images = self._once(positions.astype(np.uint64))
        # It stays a bijection: each number walks along its cycle on the grid until that is inside [0, size) again.
        outside = np.flatnonzero(images >= self.size)
        while outside.size:
            images[outside] = again = self._once(images[outside])
            outside = outside[again >= self.size]
        return images.astype(np.int64)

    def inverse(self, images: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The position of each image, int64 (n,) in [0, size), such as the place of each block in an order."""
        positions = self._back(images.astype(np.uint64))
        outside = np.flatnonzero(positions >= self.size)
        while outside.size:
            positions[outside] = again = self._back(positions[outside])
            outside = outside[again >= self.size]
        return positions.astype(np.int64)

    def at(self, position: int) -> int:
        """The image of one position."""
        rows, columns, spread = int(self._left), int(self._right), int(_SPREAD)
        while True:
            left, right = divmod(position, columns)
            # `_once` in Python's integers, which have to be kept to 64 bits by hand.
            for index, key in enumerate(self._words):
                mixed = ((left if index % 2 else right) + key) * spread & _MASK
                mixed = ((mixed ^ mixed >> 32) * (key | 1) & _MASK) >> 32
                if index % 2:
                    right = (right + mixed) % columns
                else:
                    left = (left + mixed) % rows
            position = left * columns + right
            if position < self.size:
                return position

    def _once(self, numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        left, right = np.divmod(numbers, self._right)
        for index, key in enumerate(self._keys):
            if index % 2:
                right = (right + _mixed(left, key)) % self._right
            else:
                left = (left + _mixed(right, key)) % self._left
        return left * self._right + right

    def _back(self, numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """The numbers that `_once` maps to these."""
        left, right = np.divmod(numbers, self._right)
        for index, key in reversed(list(enumerate(self._keys))):
            # Unsigned: the side is added first, so that nothing falls below 0.
            if index % 2:
                right = (right + self._right - _mixed(left, key) % self._right) % self._right
            else:
                left = (left + self._left - _mixed(right, key) % self._left) % self._left
        return left * self._right + right


def _mixed(source: npt.NDArray[np.uint64], key: np.uint64) -> npt.NDArray[np.uint64]:
    """A hash of one half, below 2**32."""
    mixed = (source + key) * _SPREAD
    mixed ^= mixed >> _HALF
    # Odd: multiplied by an even number, different halves could lead to the same hash.
    mixed *= key | np.uint64(1)
    mixed >>= _HALF
    return mixed


def shuffled(size: int, seed: int) -> npt.NDArray[np.int64]:
    """A permutation of [0, size) as an array, int64 (size,); for sizes that fit into memory.

    The numbers are sorted by the hashes that splitmix64 (Steele, Lea, Flood 2014), begun at `seed`, gives them. No two
    are equal, since it is a bijection on 64 bits. For a thousand it costs a third of what `Permutation` does.

    Args:
        size: How many numbers.
        seed: The key, in [0, 2**64).
    """
    return np.argsort(hashes_of(np.arange(size), np.uint64(seed)))


def hashes_of(numbers: npt.NDArray[np.int64], seeds: np.uint64 | npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Hash numbers to uint64 (n,) by splitmix64; one-to-one for each seed.

    Args:
        numbers: int64 (n,), from 0 on.
        seeds: Of all, or of each (n,).
    """
    hashes: npt.NDArray[np.uint64] = numbers.astype(np.uint64)
    hashes += np.uint64(1)
    hashes *= _SPREAD
    hashes += seeds
    for shift, factor in _MIXERS:
        hashes ^= hashes >> shift
        hashes *= factor
    hashes ^= hashes >> np.uint64(31)
    return hashes


def record_rng(record: Mapping[str, Any]) -> "np.random.Generator":  # NumPy imports it when it is named
    """Return a random generator for one record in the present epoch; on resume it gives the same numbers.

    The generator is seeded by the source's order in the present epoch (which the recipe's seed, the source's path of
    names and the epoch determine) and the record's index, or url and key, in the source. A process function that draws
    from it alone returns the same on resume, in any lane. With the global generators of random, numpy and torch it does
    not: they know nothing of what was delivered.

    Args:
        record: The record that a process function was given.

    Raises:
        ValueError: The record does not come from a source of a MergedDataset.
    """
    if SEED not in record or not (record.keys() & {INDEX, URL, RECORD}):
        raise ValueError(
            "record_rng: expected a record as it was given to a process function, got the fields "
            f"{names_text(record)}\n"
            "  Call it before fields whose names begin with '__' are removed."
        )
    if INDEX in record:
        identity = record[INDEX]
    elif RECORD in record and CURSOR not in record:
        identity = record[RECORD][2]
    else:
        # A sample of a merged stream, which may be another one of the same record.
        # The shard's file name alone: shards may be moved to another directory or bucket between runs.
        identity = (PurePosixPath(record.get(URL, "")).name, record.get(KEY))
    return np.random.Generator(np.random.PCG64(stable_seed(record[SEED], identity)))

"""The order of a blend, beside Megatron-Core's C++ helper: `pip install --no-deps megatron-core` has that measured."""

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from streamdata.stores.datasets.blend_rule import WORTH_COMPILING, blend_weights
from streamdata.stores.datasets.blendable import BlendIndex
from tests.benchmarks.measure import Row, Scale, by_turns

_NOT_INSTALLED = "peer not installed"


def rows(directory: Path, scale: Scale) -> Iterator[Row]:
    """Float weights by number of datasets; then integer ones, whose order has a period."""
    peer = _peer()
    compile_s = _compile_s(scale)
    for num_datasets, samples in scale.blended.items():
        yield _float_row(num_datasets, samples, min(scale.repetitions, 2), peer, compile_s)
    yield _periodic_row(*next(iter(scale.blended.items())), peer)


def _float_row(num_datasets: int, samples: int, turns: int, peer: Any, compile_s: float) -> Row:
    weights = np.random.default_rng(num_datasets).random(num_datasets).tolist()
    built: list[BlendIndex] = []
    works: dict[str, Callable[[], object]] = {"ours": lambda: built.append(_index(weights, samples)) or built.clear()}
    if peer is not None:
        works["peer"] = lambda: _by_peer(peer, weights, samples)
    best = by_turns(turns, **works)
    ratio = best["peer"] / best["ours"] if peer is not None else None
    bytes_each = _index(weights, samples // 10).size_bytes / (samples // 10)
    return Row(
        work=f"blend of {samples:,} samples from {num_datasets} datasets, float weights",
        reach="≥ 1 x Megatron-Core's C++ helper; an id of 1 byte per sample",
        got=f"{_times(ratio)}; {bytes_each:.2f} bytes with the counts",
        ok=(ratio is None or ratio >= 1) and int(bytes_each) == 1,
        from_=f"{_seconds(best)}; compiled once in {compile_s:.1f} s",
    )


def _periodic_row(num_datasets: int, samples: int, peer: Any) -> Row:
    weights = [1 + 7 * number % 90 for number in range(num_datasets)]
    works: dict[str, Callable[[], object]] = {"ours": lambda: _index(weights, samples)}
    if peer is not None:
        works["peer"] = lambda: _by_peer(peer, weights, samples)
    best = by_turns(1, **works)
    ratio = best["peer"] / best["ours"] if peer is not None else None
    index = _index(weights, samples)
    return Row(
        work=f"blend of {samples:,} samples from {num_datasets} datasets, integer weights of sum {sum(weights)}",
        reach="≥ 10 x Megatron-Core's C++ helper",
        got=f"{_times(ratio)}; {index.size_bytes} bytes in all",
        ok=ratio is None or ratio >= 10,
        from_=_seconds(best),
    )


def _index(weights: list[Any], samples: int) -> BlendIndex:
    return BlendIndex(blend_weights(weights, len(weights), exact=True), samples, megatron=False)


def _compile_s(scale: Scale) -> float:
    """What the first long blend takes more than the second; both kinds of loop are compiled for float64."""
    if max(scale.blended.values()) < WORTH_COMPILING:
        return 0.0
    seconds = []
    for _ in range(2):
        begin = perf_counter()
        for num_datasets in (2, 100):
            _index([0.3] + [0.7] * (num_datasets - 1), WORTH_COMPILING)
        seconds.append(perf_counter() - begin)
    return seconds[0] - seconds[1]


def _peer() -> Any:
    """The compiled module alone: importing its package imports the whole of Megatron-Core."""
    package = importlib.util.find_spec("megatron")
    found = [
        path
        for place in (package.submodule_search_locations if package else None) or ()
        for path in Path(place).glob("core/datasets/helpers_cpp*.so")
    ]
    if not found:
        return None
    spec = importlib.util.spec_from_file_location("helpers_cpp", found[0])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _by_peer(peer: Any, weights: list[Any], samples: int) -> None:
    array = np.array(weights, np.float64)
    datasets, ranks = np.zeros(samples, np.int16), np.zeros(samples, np.int64)
    peer.build_blending_indices(datasets, ranks, array / array.sum(), len(weights), samples, False)


def _times(ratio: float | None) -> str:
    return _NOT_INSTALLED if ratio is None else f"{ratio:.1f} x"


def _seconds(best: dict[str, float]) -> str:
    peer = f"{best['peer']:.2f} s" if "peer" in best else _NOT_INSTALLED
    return f"{best['ours']:.4f} s; Megatron-Core {peer}"

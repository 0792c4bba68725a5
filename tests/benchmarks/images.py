"""Image-text pairs: the builder's stream beside the bare loop that decodes, resizes and tokenizes the same records.

Like with like: both make equal tensors, and with workers both join them to one dict of tensors per batch. The bare loop
has its files in memory; the stream reads them, shuffled, from the page cache.
"""

import io
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import webdataset
from PIL import Image
from torch.nn.functional import interpolate
from torch.utils.data import Dataset, default_collate

from streamdata import ImageTextPairProcessFnBuilder, MergedDataset, MetaDistributedWebDataset, TensorCollate
from tests.benchmarks.data import cached
from tests.benchmarks.measure import (
    BATCH_SIZE,
    FIRST_BATCHES,
    Row,
    Scale,
    Times,
    anew,
    apart,
    by_turns,
    compared,
    drain,
    loading_time,
    per_second,
)
from tests.text.tiny_tokenizer import save_tiny_tokenizer

BACKENDS = ("pillow", "simplejpeg")
_STORED, _WANTED, _MAX_TOKENS = 256, 224, 32  # pixels, pixels, tokens
_TEXT = "the cat sat on the mat and the dog did not"
_AIM = 0.85
LIMIT = "decoding, resizing and tokenizing by hand"


def rows(directory: Path, scale: Scale) -> Iterator[Row]:
    """Each backend, without workers and with them."""
    place = photographs(directory, scale)
    tokenizer = place / "tokenizer"
    for backend in BACKENDS:
        yield _one_process(place, str(tokenizer), backend, scale)
        yield _workers(place, str(tokenizer), backend, scale)


def photographs(directory: Path, scale: Scale) -> Path:
    """A tar of JPEGs with texts, and a tokenizer."""
    return cached(directory, f"images-{scale.images}", partial(_write, records=scale.images))


def _write(place: Path, records: int) -> None:
    save_tiny_tokenizer(place / "tokenizer")
    rng = np.random.default_rng(0)
    with webdataset.TarWriter(str(place / "00000.tar"), encoder=False, mtime=0) as writer:
        for number in range(records):
            writer.write({"__key__": f"{number:08d}", "jpg": _photograph(rng), "txt": _TEXT.encode()})


def _photograph(rng: np.random.Generator) -> bytes:
    """As many bytes per pixel as photographs have: blurred noise with some grain."""
    coarse = Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).resize((_STORED, _STORED))
    grain = rng.integers(-12, 13, (_STORED, _STORED, 3))
    file = io.BytesIO()
    Image.fromarray(np.clip(np.asarray(coarse) + grain, 0, 255).astype(np.uint8)).save(file, "JPEG", quality=85)
    return file.getvalue()


def merged(place: Path, tokenizer: str, backend: Any, *, cyclic: bool) -> MergedDataset:
    """The builder's stream over them."""
    function = ImageTextPairProcessFnBuilder(_WANTED, _MAX_TOKENS, tokenizer, backend=backend)
    source: Any = MetaDistributedWebDataset(str(place / "00000.tar"), process_fn=function)
    source.name, source.percent = "images", 1.0
    return MergedDataset([source], cyclic=cyclic)


class _BareLoop(Dataset[dict[str, torch.Tensor]]):
    """The files in memory, in a list: what is left is decoding, resizing and tokenizing."""

    def __init__(self, place: Path, tokenizer: str, backend: str) -> None:
        source: Any = MetaDistributedWebDataset(str(place / "00000.tar"))
        source.name, source.percent = "images", 1.0
        stream = MergedDataset([source], cyclic=False, shuffle_streaming_subsets=False)
        self._records = [(sample["jpg"], sample["txt"]) for sample in stream]
        self._tokenizer = tokenizer
        self._encode: Callable[[str], Any] | None = None
        self._decode = {"pillow": _by_pillow, "simplejpeg": _by_simplejpeg}[backend]

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        jpg, txt = self._records[index % len(self._records)]
        if self._encode is None:
            from tokenizers import Tokenizer

            self._encode = Tokenizer.from_file(f"{self._tokenizer}/tokenizer.json").encode
        batch = torch.from_numpy(self._decode(jpg)).permute(2, 0, 1).unsqueeze(0)
        img = interpolate(batch, size=(_WANTED, _WANTED), mode="bicubic", antialias=True)[0]
        return {"img": img, "txt": torch.tensor(self._encode(txt.decode()).ids)}


class _Endless(torch.utils.data.IterableDataset[dict[str, torch.Tensor]]):
    def __init__(self, loop: _BareLoop) -> None:
        self._loop = loop

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        number = 0
        while True:
            yield self._loop[number]
            number += 1


def _by_pillow(data: bytes) -> Any:
    return np.array(Image.open(io.BytesIO(data)).convert("RGB"))


def _by_simplejpeg(data: bytes) -> Any:
    import simplejpeg

    return simplejpeg.decode_jpeg(data)


def _one_process(place: Path, tokenizer: str, backend: str, scale: Scale) -> Row:
    dataset, loop = merged(place, tokenizer, backend, cyclic=False), _BareLoop(place, tokenizer, backend)
    _check(dataset, loop)
    best = by_turns(
        scale.repetitions,
        ours=lambda: drain(anew(dataset)),
        bare=lambda: drain(loop[number] for number in range(len(loop))),
    )
    return _row(f"JPEGs of {_STORED} x {_STORED} to {_WANTED}, {backend}, no workers", scale.images, best)


def _check(dataset: MergedDataset, loop: _BareLoop) -> None:
    sample = next(iter(anew(dataset)))
    pixels = loop[int(sample["__key__"])]
    assert all(torch.equal(pixels[field], sample[field]) for field in ("img", "txt")), "the bare loop makes others"


def _workers(place: Path, tokenizer: str, backend: str, scale: Scale) -> Row:
    batches = max(1, scale.images // BATCH_SIZE - FIRST_BATCHES)
    best = by_turns(
        min(scale.repetitions, 3),
        ours=lambda: apart(_our_loading_time, place, tokenizer, backend, batches),
        bare=lambda: apart(_bare_loading_time, place, tokenizer, backend, batches),
    )
    return _row(f"the same, {backend}, two workers, batches of {BATCH_SIZE}", batches * BATCH_SIZE, best)


def _our_loading_time(place: Path, tokenizer: str, backend: str, batches: int) -> float:
    return loading_time(merged(place, tokenizer, backend, cyclic=True), TensorCollate(), batches)


def _bare_loading_time(place: Path, tokenizer: str, backend: str, batches: int) -> float:
    return loading_time(_Endless(_BareLoop(place, tokenizer, backend)), default_collate, batches)


def _row(work: str, count: int, best: Times) -> Row:
    rates = f"{per_second(count, best['ours'])}; bare loop {per_second(count, best['bare'])}"
    return compared(work, {LIMIT: _AIM}, [best.beside("ours", "bare", LIMIT)], rates)

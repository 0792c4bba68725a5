"""Images that the lines of a JSONL file name."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from streamdata.errors import ShardError, names_text, shown
from streamdata.fields import KEY, is_reserved
from streamdata.io.storage import local_path
from streamdata.io.suffixes import is_sequential
from streamdata.recipe.limits import Limits, ShardLimits, read_limits
from streamdata.recipe.named_source import Percent
from streamdata.run.trainer import end_worker_with_trainer
from streamdata.shards.jsonl.shards import JsonlShards
from streamdata.shards.urls import expand_home
from streamdata.sources.alone import Alone
from streamdata.sources.functions.process_functions import PerRecordFn
from streamdata.sources.functions.process_image import open_image
from streamdata.sources.source import Record


class ImageJsonlDataset(Alone):
    """A map-style dataset: line i of a JSONL file, with the image that it names.

    A line carries `imagepath` (absolute, or relative to the JSONL file) and any other fields; the image arrives as a
    PIL image under `image`. The lines' offsets are indexed on disk, so that nothing grows with their number.

    Args:
        jsonl_path: The JSONL file; `~` is the home directory.
        single_process_fn: A function of one record.
        name: Its name in a mixture, without a ".".
        percent: Its weight there.
        holdout: Which share of its records is held out of training; see `NamedSource`.
        part: `train` or `valid`, where there is a holdout.
        limits: `line_bytes` (64 MiB), what a line may have at most.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is compressed, so that no line can be read alone.
    """

    def __init__(
        self,
        jsonl_path: str,
        single_process_fn: PerRecordFn | None = None,
        *,
        name: str | None = None,
        percent: Percent | None = None,
        holdout: float | None = None,
        part: str | None = None,
        limits: Limits = None,
    ) -> None:
        super().__init__(name, percent, holdout, part)
        self.single_process_fn = single_process_fn
        if is_sequential(jsonl_path):
            raise ValueError(
                f"ImageJsonlDataset: expected a JSONL file any line of which can be read, got {shown(jsonl_path)}\n"
                "  Decompress it, or read it by JsonlIterableDataset with a process function that opens the images."
            )
        url = expand_home(jsonl_path)  # a recipe's path is expanded by `expand`, which this single file does not need
        self._path = local_path(url)
        self._lines = JsonlShards([url], limits=read_limits(limits, ShardLimits, "ImageJsonlDataset"))
        self._length = int(self._lines.num_records[0])

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Record:
        """Read line `index` (from 0, or from the end) and its image.

        Raises:
            IndexError: There is no such line.
            ShardError: The line names no image.
            FileNotFoundError: There is no such image.
            PIL.UnidentifiedImageError: It is not a valid image.
        """
        if not -self._length <= index < self._length:
            raise IndexError(f"{self._path}: line index {index} of {self._length}")
        return self._with_image(self._read([index % self._length])[0])

    def __getitems__(self, indices: Sequence[int]) -> list[Record]:
        """Read many lines at once, each in [0, len)."""
        end_worker_with_trainer()
        return [self._with_image(record) for record in self._read(indices)]

    def _read(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        firsts = np.asarray(indices, dtype=np.int64)
        # A run of one row for each index: what touches is read at once all the same.
        window = self._lines.window(np.zeros_like(firsts), firsts, np.ones_like(firsts))
        return list(window.take(np.arange(len(firsts))))

    def _with_image(self, record: Record) -> Record:
        name = record.get("imagepath")
        if not isinstance(name, str):
            raise ShardError(
                f"{self._path}:{int(record[KEY]) + 1}: expected an image's path in 'imagepath', got {shown(name)}\n"
                f"  Its fields are {names_text(key for key in record if not is_reserved(key))}."
            )
        record["image"] = open_image(Path(self._path).parent / name)
        return record

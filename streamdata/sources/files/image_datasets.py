"""Images in files of their own: in a folder for each class, or named by the lines of a JSONL file."""

import logging
import os
from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from streamdata.errors import ShardError, names_text, one_line, shown
from streamdata.fields import KEY, is_reserved
from streamdata.io.storage import is_remote, local_path
from streamdata.recipe.limits import Limits, ShardLimits, read_limits
from streamdata.recipe.named_source import Percent
from streamdata.run.trainer import end_worker_with_trainer
from streamdata.shards.jsonl.shards import JsonlShards
from streamdata.shards.listing import is_sequential
from streamdata.shards.urls import expand_home
from streamdata.sources.alone import Alone
from streamdata.sources.functions.images import FORMATS, open_image
from streamdata.sources.functions.process_functions import PerRecordFn
from streamdata.sources.source import Record

logger = logging.getLogger(__name__)
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
FILE_FORMATS = (*FORMATS, "BMP", "GIF", "TIFF")


class ImageFolderDataset(Alone):
    """Map-style dataset over a folder with one subfolder per class: items have `image`, `cls` and `class_name`.

    `image` is a PIL image, `cls` the index of the class among the sorted names of the folders, `class_names`. Images
    lie anywhere below their class's folder; they are sorted by path. Formats are JPEG, PNG, WebP, BMP, GIF and TIFF;
    of a file with several pictures, such as an animation, the first is read.

    Args:
        path: The folder; `~` is the home directory.
        single_process_fn: A function of one record, such as `DecodeImages`.
        name: Its name in a mixture, without a ".".
        percent: Its weight there.
        holdout: The share of its records that is held out of training; see `docs/guides/validation.md`.
        part: `train` or `valid`, where there is a holdout.

    Raises:
        FileNotFoundError: The folder does not exist.
        ValueError: An image lies outside of the class folders, or a class folder has no image.
    """

    def __init__(
        self,
        path: str,
        single_process_fn: PerRecordFn | None = None,
        *,
        name: str | None = None,
        percent: Percent | None = None,
        holdout: float | None = None,
        part: str | None = None,
    ) -> None:
        super().__init__(name, percent, holdout, part)
        self.single_process_fn = single_process_fn
        url = expand_home(path)
        if is_remote(url):
            raise ValueError(f"ImageFolderDataset: expected a folder of this machine, got '{path}'\n  Write shards.")
        self._folder = local_path(url)
        if not os.path.isdir(self._folder):
            raise FileNotFoundError(f"ImageFolderDataset: expected a folder, got '{path}'\n  Check the path.")
        entries = sorted(name for name in os.listdir(self._folder) if not name.startswith("."))
        self.class_names = [name for name in entries if os.path.isdir(os.path.join(self._folder, name))]
        outside = [name for name in entries if name.lower().endswith(IMAGE_SUFFIXES)]
        if outside or not self.class_names:
            got = f"{len(outside)} outside of them, such as {shown(outside[0])}" if outside else "no folder"
            raise ValueError(
                f"ImageFolderDataset: '{self._folder}': expected images in a folder for each class, got {got}\n"
                "  Move them, or name the folder above."
            )
        of_class = [self._images_of(name) for name in self.class_names]
        # One piece of memory: a list of a million names is copied to each worker, object by object.
        names = [os.fsencode(name) for names in of_class for name in names]
        self._names, self._ends = b"".join(names), np.cumsum([len(name) for name in names], dtype=np.int64)
        self._class_ends = np.cumsum([len(names) for names in of_class], dtype=np.int64)
        # Names without the folder: a resume may find it elsewhere, and another image at an index is another source.
        self.source_identity = f"images {blake2b(self._names, digest_size=6).hexdigest()}"

    def _images_of(self, name: str) -> list[str]:
        found, others = [], Counter[str]()
        for folder, folders, files in os.walk(os.path.join(self._folder, name)):
            # In place: `os.walk` goes on into what is left in the list.
            folders[:] = [one for one in folders if not one.startswith(".")]
            for file in files:
                if file.lower().endswith(IMAGE_SUFFIXES) and not file.startswith("."):
                    found.append(os.path.relpath(os.path.join(folder, file), self._folder))
                elif not file.startswith("."):
                    others[os.path.splitext(file)[1]] += 1
        if others:
            logger.warning(
                "ImageFolderDataset: '%s': left out, by suffix: %s", one_line(name), dict(sorted(others.items()))
            )
        if not found:
            raise ValueError(
                f"ImageFolderDataset: '{self._folder}': expected images ({', '.join(IMAGE_SUFFIXES)}) in each folder, "
                f"got none in '{name}'\n  Remove the folder, or name the one above the classes."
            )
        return sorted(found)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> Record:
        """Image `index` (from 0, or from the end).

        Raises:
            IndexError: There is no such image.
            FileNotFoundError: It was removed.
            PIL.UnidentifiedImageError: It is not a valid image.
        """
        if not -len(self) <= index < len(self):
            raise IndexError(f"{self._folder}: image {index} of {len(self)}")
        index %= len(self)
        begin = int(self._ends[index - 1]) if index else 0
        path = os.fsdecode(self._names[begin : int(self._ends[index])])
        # Of a class's images all but the last lie before its end.
        cls = int(np.searchsorted(self._class_ends, index, side="right"))
        image = open_image(Path(self._folder) / path, FILE_FORMATS)
        return {"image": image, "cls": cls, "class_name": self.class_names[cls]}


class ImageJsonlDataset(Alone):
    """Map-style dataset of the lines of a JSONL file, each with the image that it names.

    A line carries `imagepath` (absolute, or relative to the JSONL file) and any other fields; the image arrives as a
    PIL image under `image`. The lines' offsets are indexed on disk, so that nothing grows with their number.

    Args:
        jsonl_path: The JSONL file; `~` is the home directory.
        single_process_fn: A function of one record.
        name: Its name in a mixture, without a ".".
        percent: Its weight there.
        holdout: The share of its records that is held out of training; see `docs/guides/validation.md`.
        part: `train` or `valid`, where there is a holdout.
        limits: `line_bytes` (64 MiB), the longest line allowed.

    Raises:
        FileNotFoundError: The JSONL file does not exist.
        ValueError: The JSONL file is compressed, so that single lines cannot be read.
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

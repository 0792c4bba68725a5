"""Images whose class is the name of their folder."""

import logging
import os
from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np

from streamdata.errors import one_line, shown
from streamdata.io.storage import is_remote, local_path
from streamdata.recipe.named_source import Percent
from streamdata.shards.urls import expand_home
from streamdata.sources.alone import Alone
from streamdata.sources.functions.process_functions import PerRecordFn
from streamdata.sources.functions.process_image import FORMATS, open_image
from streamdata.sources.source import Record

logger = logging.getLogger(__name__)
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
_FORMATS = (*FORMATS, "BMP", "GIF", "TIFF")


class ImageFolderDataset(Alone):
    """A map-style dataset of a folder that has a folder for each class: `image`, `cls` and `class_name`.

    `image` is a PIL image, `cls` the index of the class among the sorted names of the folders, `class_names`. Images
    lie anywhere below their class's folder; they are sorted by path. They are JPEG, PNG, WebP, BMP, GIF or TIFF; of
    several pictures in one file, such as an animation's, it is the first.

    Args:
        path: The folder; `~` is the home directory.
        single_process_fn: A function of one record, such as `DecodeImages`.
        name: Its name in a mixture, without a ".".
        percent: Its weight there.
        holdout: Which share of its records is held out of training; see `NamedSource`.
        part: `train` or `valid`, where there is a holdout.

    Raises:
        FileNotFoundError: There is no such folder.
        ValueError: It has images outside of the folders, or one of these has none.
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
        self._check_top(entries)
        of_class = [self._images_of(name) for name in self.class_names]
        # One piece of memory: a list of a million names is copied to each worker, object by object.
        names = [os.fsencode(name) for names in of_class for name in names]
        self._names, self._ends = b"".join(names), np.cumsum([len(name) for name in names], dtype=np.int64)
        self._class_ends = np.cumsum([len(names) for names in of_class], dtype=np.int64)
        # Names without the folder: a resume may find it elsewhere, and another image at an index is another source.
        self.source_identity = f"images {blake2b(self._names, digest_size=6).hexdigest()}"

    def _check_top(self, entries: Sequence[str]) -> None:
        outside = [name for name in entries if name.lower().endswith(IMAGE_SUFFIXES)]
        if outside or not self.class_names:
            got = f"{len(outside)} outside of them, such as {shown(outside[0])}" if outside else "no folder"
            raise ValueError(
                f"ImageFolderDataset: '{self._folder}': expected images in a folder for each class, got {got}\n"
                "  Move them, or name the folder above."
            )

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
        image = open_image(Path(self._folder) / path, _FORMATS)
        return {"image": image, "cls": cls, "class_name": self.class_names[cls]}

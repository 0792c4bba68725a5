"""A disk that loses its power: `an action → all calls that change the disk → what may be there after a power cut`.

Between two calls of `os` that sync, name or unname something, the tree is looked at. What was not synced may be there,
or not: a file's content as it was when it was last synced, torn, zeros, or as it is; a directory's names as they were
when it was last synced, or as they are, each directory for itself.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

Names = dict[str, int]
"""Of a directory: the number of the inode of each."""
NAMING = ("rename", "replace", "mkdir", "unlink", "rmdir", "link")


class Content(NamedTuple):
    """Of a file."""

    data: bytes
    mtime_ns: int


class Look(NamedTuple):
    """What is there, and what of it is on the disk."""

    names: dict[int, Names]
    contents: dict[int, Content]
    synced_names: dict[int, Names]
    synced_contents: dict[int, Content]
    root: int


class Disk:
    """Watches a folder. What is there at the start is on the disk.

    Args:
        folder: All that is written lies below it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.looks: list[Look] = []
        names, contents = self._tree()
        self._seen = dict(contents)
        self._synced_names, self._synced_contents = dict(names), dict(contents)

    def _tree(self) -> tuple[dict[int, Names], dict[int, Content]]:
        names: dict[int, Names] = {}
        contents: dict[int, Content] = {}
        for path, _, _ in os.walk(self.folder):
            found = names[os.stat(path).st_ino] = {}
            for entry in os.scandir(path):
                status = entry.stat(follow_symlinks=False)
                found[entry.name] = status.st_ino
                if entry.is_file():
                    contents[status.st_ino] = Content(Path(entry.path).read_bytes(), status.st_mtime_ns)
        return names, contents

    def look(self) -> None:
        """Note what is there now."""
        names, contents = self._tree()
        # The number of an inode that is gone may be given to another file.
        for synced, there in ((self._synced_names, names), (self._synced_contents, contents)):
            for number in set(synced) - set(there):
                if not any(number in entries.values() for entries in self._synced_names.values()):
                    del synced[number]
        root = self.folder.stat().st_ino
        # What was removed may be there again, as it was when it was last seen.
        self._seen |= contents
        contents = {number: self._seen[number] for number in {*contents, *self._removed()} & self._seen.keys()}
        self.looks.append(Look(names, contents, dict(self._synced_names), dict(self._synced_contents), root))

    def _removed(self) -> set[int]:
        return {number for entries in self._synced_names.values() for number in entries.values()}

    def sync(self, fd: int) -> None:
        """Note that this file or directory is on the disk."""
        number = os.fstat(fd).st_ino
        names, contents = self._tree()
        if number in names:
            self._synced_names[number] = dict(names[number])
        if number in contents:
            self._synced_contents[number] = contents[number]


@contextmanager
def watched(folder: Path) -> Iterator[Disk]:
    """Watch a folder: `disk.looks` grow with each call that syncs or names something."""
    disk, real = Disk(folder), {name: getattr(os, name) for name in (*NAMING, "fsync")}

    def naming(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            disk.look()
            result = real[name](*arguments, **options)
            disk.look()
            return result

        return call

    def fsync(fd: Any) -> None:
        disk.look()
        real["fsync"](fd)
        disk.sync(fd if isinstance(fd, int) else fd.fileno())

    try:
        for name in NAMING:
            setattr(os, name, naming(name))
        os.fsync = fsync
        yield disk
    finally:
        for name, function in real.items():
            setattr(os, name, function)
        disk.look()


def _torn(data: bytes) -> bytes:
    return data[: len(data) // 2] + bytes(len(data) - len(data) // 2)


LOSSES: dict[str, Callable[[bytes, bytes], bytes]] = {
    "lost": lambda data, synced: synced,
    "torn": lambda data, synced: _torn(data),
    "short": lambda data, synced: data[: len(data) // 2],
    "zeros": lambda data, synced: bytes(len(data)),
    "written": lambda data, synced: data,
}
"""What becomes of content that was not synced, from what it is and what was synced of it."""

Files = dict[str, Content | None]
"""By path; None is a directory."""


def cuts(disk: Disk) -> Iterator[Files]:
    """All that may be there after a power cut at any time, each once."""
    seen = set()
    for look in disk.looks:
        changed = [number for number, names in look.names.items() if look.synced_names.get(number, {}) != names]
        chosen = [set(changed), set()]
        chosen += [{number} for number in changed] + [set(changed) - {number} for number in changed]
        for kept in chosen:
            if _tears_a_move(look, kept):
                continue
            for lose in LOSSES.values():
                files: Files = {}
                _place(look, look.root, "", kept, lose, files)
                key = frozenset((path, None if content is None else content.data) for path, content in files.items())
                if key not in seen:
                    seen.add(key)
                    yield files


def _tears_a_move(look: Look, kept: set[int]) -> bool:
    """Whether something that was moved between directories would be in both or in neither: a journal moves it whole."""
    there = {*look.names, *look.synced_names}
    after = {number: (look.names if number in kept else look.synced_names).get(number, {}) for number in there}
    for source, before in look.synced_names.items():
        for inner in set(before.values()) - set(look.names.get(source, {}).values()):
            targets = [number for number, names in look.names.items() if number != source and inner in names.values()]
            if targets and sum(inner in names.values() for names in after.values()) != 1:
                return True
    return False


def _place(
    look: Look, number: int, at: str, kept: set[int], lose: Callable[[bytes, bytes], bytes], files: Files
) -> None:
    """Add what lies in a directory whose names are those that were written, where it is one of `kept`."""
    names = look.names[number] if number in kept and number in look.names else look.synced_names.get(number, {})
    for name, inner in names.items():
        path = f"{at}{name}"
        if inner in look.contents or inner in look.synced_contents:
            synced = look.synced_contents.get(inner)
            content = look.contents.get(inner) or synced
            assert content is not None, "it is in one of them"
            if synced is None or synced.data != content.data:
                content = content._replace(data=lose(content.data, b"" if synced is None else synced.data))
            files[path] = content
        else:
            files[path] = None
            _place(look, inner, f"{path}/", kept, lose, files)


def restore(folder: Path, files: Files) -> None:
    """Let these files be all that lies in the folder."""
    shutil.rmtree(folder)
    folder.mkdir()
    for path, content in files.items():
        place = folder / path
        if content is None:
            place.mkdir(parents=True, exist_ok=True)
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content.data)
        os.utime(place, ns=(content.mtime_ns, content.mtime_ns))

"""Files below folders: `folder, glob or braces → urls of files`, and how the names of shards end.

The rules are the same on a local disk, in object stores and on web servers:

- `*`, `?` and `[…]` stand for what is within one name, `**` for any number of folders, none included.
- A folder stands for all files below it, also one that a glob matches.
- A name that begins with a dot is hidden: it is found only by a part of a glob that begins with one too.
- A folder that is a symbolic link is followed where it is spelt out. Where it would have to be found it is left out,
  with a warning: it may lead to what is found anyway, or in a circle.
- The paths of a brace expression are counted before it is expanded: `{0..999999999999}` fills no memory.
"""

import logging
import os
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Final

from streamdata.errors import one_line, shown
from streamdata.io.remote.addresses import bare_url, beside
from streamdata.io.remote.once import list_once
from streamdata.io.remote.requests import Listed
from streamdata.io.storage import FileStamp, is_pipe, is_remote, local_path, note_version, stamp_of_answer
from streamdata.recipe.limits import PIPE

TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.zst")
COMPRESSIONS = ("", ".gz", ".zst", ".zstd", ".bz2", ".xz")
JSONL_SUFFIXES = tuple(end + compressed for end in (".jsonl", ".ndjson") for compressed in COMPRESSIONS)
JSON_SUFFIXES = tuple(f".json{compressed}" for compressed in COMPRESSIONS)
"""Suffixes of what may be JSON Lines, or anything else: in a folder it is no shard, only where a glob ends so or a name
is spelt out."""
SIDECAR_SUFFIXES = (".meta.jsonl", ".jsonl")
META_SUFFIX = SIDECAR_SUFFIXES[0]
_COMPRESSED = (".gz", ".tgz", ".zst", ".zstd", ".bz2", ".xz")
MAX_PATHS: Final = 1_000_000
_MAX_CHARS: Final = 1 << 28  # of all of them together
_MAX_LEVELS: Final = 10
_MAX_DIGITS: Final = 18
_NUMBERS: Final = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.-?(\d+))?$")
_ESCAPED: Final = re.compile(r"\\.", re.DOTALL)
_INNERMOST: Final = re.compile(r"\{([^{}]*)\}")
_FIRST_LETTER: Final = 0xF0000  # of those that no name has: they are for private use
_LETTERS: Final = re.compile(r"[A-Za-z]\.\.[A-Za-z](?:\.\.-?\d+)?$")
logger = logging.getLogger(__name__)
_ANY_FOLDERS = "**"
_GLOB = re.compile(r"[*?\[]")
_HTTP = ("http://", "https://")  # where a question mark begins a query
_MAX_NAMED = 5
Names = tuple[str, ...]
"""Names of folders, and perhaps of a file at the end, each in the one before it."""


def is_sequential(url: str) -> bool:
    """Whether a shard can only be read from its start: it is compressed or piped."""
    return url.endswith(_COMPRESSED) or url.startswith(PIPE)  # no call for it: there may be 100,000


def sidecars_of(url: str) -> list[str]:
    """The names that a tar shard's sidecar may have, the preferred first; none for a pipe."""
    stem = next((url.removesuffix(end) for end in TAR_SUFFIXES if url.endswith(end)), url)
    return [] if is_pipe(url) else [beside(url, stem + suffix) for suffix in SIDECAR_SUFFIXES]


def check_braces(pattern: str) -> None:
    """Raise if a brace pattern expands to more paths than can be read, by the rules of `braceexpand`.

    Braces are counted from the innermost ones outwards; each then is a letter that stands for so many texts.

    Raises:
        ValueError: The pattern stands for too many paths, or its braces are not in pairs.
    """
    sizes: dict[str, tuple[int, int]] = {}

    def size_of(text: str, *, is_fit: bool = True) -> tuple[int, int]:
        """How many texts it stands for, and how many characters these have together."""
        num, chars = 1, 0
        for letter in text:
            more, chars_of_letter = sizes.get(letter, (1, 1))
            # One more than may be is enough: so numbers stay small.
            num, chars = min(num * more, MAX_PATHS + 1), min(chars * more + chars_of_letter * num, _MAX_CHARS + 1)
        if not is_fit or num > MAX_PATHS or chars > _MAX_CHARS:
            raise ValueError(
                f"shards: pattern {shown(bare_url(pattern))}: its braces stand for too many paths, expected at most "
                f"{MAX_PATHS} of {_MAX_CHARS >> 20} MiB together, and {_MAX_LEVELS} braces within one another\n"
                "  Name the folder of the shards, or write a glob."
            )
        return num, chars

    def counted(brace: re.Match[str]) -> str:
        parts, numbers = [size_of(part) for part in brace[1].split(",")], _NUMBERS.match(brace[1])
        size = sum(num for num, _ in parts), sum(chars for _, chars in parts)
        if numbers:
            size_of("", is_fit=max(len(number or "") for number in numbers.groups()) <= _MAX_DIGITS)
            first, last, step = (int(number or 1) for number in numbers.groups())
            num = abs(last - first) // (step or 1) + 1
            size = num, num * max(len(numbers[1]), len(numbers[2]))
        elif _LETTERS.match(brace[1]):
            size = 52, 52  # at most
        elif len(parts) == 1:  # the braces stand for themselves
            size = size[0], size[1] + 2 * size[0]
        sizes[letter := chr(_FIRST_LETTER + len(sizes))] = size
        return letter

    text, level, inner = _ESCAPED.sub("x", pattern), 0, ""
    while text != inner:
        inner, text, level = text, _INNERMOST.sub(counted, text), level + 1
        size_of(text, is_fit=level <= _MAX_LEVELS + 1)
    if text.count("{") != text.count("}"):
        raise ValueError(
            f"shards: pattern {shown(bare_url(pattern))}: expected braces in pairs, got one without the other\n"
            "  Close it."
        )


def is_glob(url: str) -> bool:
    """Whether the url is a pattern; false if a local file has exactly this name."""
    if is_remote(url):
        return "*" in url or (not url.startswith(_HTTP) and _GLOB.search(url) is not None)
    return _GLOB.search(local_path(url)) is not None and not os.path.lexists(local_path(url))


class Listings:
    """Finds the files that folders and globs stand for; each folder of a host is listed once.

    Attributes:
        stamps: What the lists of hosts say of files beside their urls.
    """

    def __init__(self) -> None:
        self.stamps: dict[str, FileStamp] = {}
        self._listed: dict[tuple[str, bool], list[Listed]] = {}

    def sizes(self) -> dict[str, int]:
        """The size of each file that the lists of hosts had, by url, also of those that are hidden."""
        return {bare_url(file.url): file.size for found in self._listed.values() for file in found}

    def is_folder(self, url: str) -> bool:
        """Whether a folder exists at the url."""
        if not is_remote(url):
            return os.path.isdir(local_path(url))
        if url.endswith((*TAR_SUFFIXES, *JSONL_SUFFIXES)):  # to ask what it is would be a request for each
            return False
        folder = with_slash(url)
        return any(found.url != folder for found in self._list(folder, deep=True))

    def files(self, root: str, parts: Names = ()) -> list[str]:
        """The sorted urls of all files below a folder (with its slash), or of those that a glob's `parts` match."""
        if not is_remote(root):
            return sorted(_local(root, parts))
        urls: list[str] = []
        folders: list[Names] = [()]
        while folders:
            above = folders.pop()
            # A host lists a tree as fast as one folder, so it is asked so where it may.
            is_deep = not parts or _ANY_FOLDERS in parts[: len(above) + 1] or len(above) >= len(parts)
            for found in self._list(beside(root, root + "".join(f"{name}/" for name in above)), deep=is_deep):
                if not found.url.startswith(root.rstrip("/")):
                    raise ValueError(
                        f"shards: expected what is below '{root}', got '{found.url}' from its server's listing\n"
                        "  Name the shards one by one, or by a brace expression."
                    )
                names = tuple(name for name in found.url[len(root.rstrip("/")) :].split("/") if name)
                if not found.url.endswith("/"):
                    if names and _fits(names, parts):
                        urls.append(beside(root, bare_url(found.url)))
                elif names != above and _fits(names, parts, leads_on=True):
                    folders.append(names)
        return sorted(urls)

    def _list(self, folder: str, *, deep: bool) -> list[Listed]:
        if (folder, deep) not in self._listed:
            try:
                found = list_once(folder, deep=deep)
            except FileNotFoundError:
                found = []
            self._listed[folder, deep] = found
            for file in found:
                if file.version and not file.url.endswith("/"):
                    url = bare_url(file.url)
                    self.stamps[url] = note_version(url, stamp_of_answer(file), file.version)
        return self._listed[folder, deep]


def with_slash(folder: str) -> str:
    """Append the slash with which the urls of a folder's files continue; "" stays ""."""
    return folder if folder.endswith("/") or not folder else beside(folder, f"{folder}/")


def chosen(root: str, parts: Names, urls: Sequence[str]) -> list[str]:
    """Select the urls that a glob's parts match, among all files below `root`."""
    return [url for url in urls if _fits(url[len(root) :].split("/"), parts)]


def split_glob(pattern: str) -> tuple[str, Names]:
    """Split a glob into the folder above all of its matches, with its slash, and the patterns below that."""
    magic = "*" if pattern.startswith(_HTTP) else "*?["
    first = min(index for index in map(pattern.find, magic) if index >= 0)
    root = pattern[: pattern.rfind("/", 0, first) + 1]
    parts = [part for part in pattern[len(root) :].split("/") if part]
    if pattern.endswith(("/", _ANY_FOLDERS)):  # folders, which stand for what is below them
        parts += [_ANY_FOLDERS, "*"]
    if pattern.startswith(_HTTP):
        parts = [part.replace("?", "[?]") for part in parts]
    return beside(pattern, root), tuple(parts)


def _fits(names: Sequence[str], parts: Names, *, leads_on: bool = False) -> bool:
    """Whether a file of these names is meant; with `leads_on`, whether files in a folder of these names may be."""
    if not parts:
        return not any(name.startswith(".") for name in names)
    if not names:
        return leads_on
    name, part = names[0], parts[0]
    if part == _ANY_FOLDERS:
        is_inside = not name.startswith(".") and _fits(names[1:], parts, leads_on=leads_on)
        return is_inside or _fits(names, parts[1:], leads_on=leads_on)
    is_meant = fnmatchcase(name, part) and (part.startswith(".") or not name.startswith("."))
    return is_meant and _fits(names[1:], parts[1:], leads_on=leads_on)


def _local(root: str, parts: Names) -> Iterator[str]:
    """Files below a local folder, whose own spelling begins each url."""
    links: list[str] = []
    folders: list[Names] = [()] if os.path.isdir(local_path(root) or ".") else []
    while folders:
        above = folders.pop()
        with os.scandir(os.path.join(local_path(root), *above) or ".") as entries:
            for entry in entries:
                names = (*above, entry.name)
                # Whether the glob says this name itself.
                is_meant = _ANY_FOLDERS not in parts[: len(names)] and parts[len(above) : len(names)] == (entry.name,)
                try:
                    is_folder = entry.is_dir()
                except OSError:  # a link in a circle, or to where nobody may look, is none where it is not meant
                    if is_meant:
                        raise
                    is_folder = False
                if not is_folder:
                    if _fits(names, parts):
                        yield root + "/".join(names)
                elif _fits(names, parts, leads_on=True):
                    if entry.is_symlink() and not is_meant:
                        links.append(root + "/".join(names))
                    else:
                        folders.append(names)
    if links:
        named = ", ".join(sorted(links)[:_MAX_NAMED]) + (", …" if len(links) > _MAX_NAMED else "")
        logger.warning("shards: %d folders are symbolic links and left out: %s; name them to read them",
                       len(links), one_line(named))  # fmt: skip

"""When a merged stream has gone through a whole epoch of each of its sources."""

from collections.abc import Iterable, Mapping

from streamdata.states.cursor import Cursor, Entry, PlainEntry


class WholeEpochs:
    """Follows a merged stream by the entries of its samples.

    Args:
        paths: The sources of records.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = frozenset(paths)
        self.begin()

    def begin(self) -> None:
        """From now on."""
        self._first: dict[str, int] = {}
        self._left = set(self._paths)

    def are_over(self, entries: Mapping[str, PlainEntry]) -> bool:
        """Whether, with the sample of these entries, each source has gone through a whole epoch since the beginning."""
        for path in self._left & entries.keys():
            epoch = Cursor(*Entry(*entries[path]).cursor).epoch
            if epoch > self._first.setdefault(path, epoch) + 1:  # the first may have begun before
                self._left.remove(path)
        return not self._left

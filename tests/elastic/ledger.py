"""What must hold, by lists: the package is asked for nothing but seeds, by which samples say their epoch."""

from collections import Counter, defaultdict
from itertools import product

from streamdata.run import stable_seed
from tests.elastic.functions import ROW, is_optional, required_parts
from tests.streams import in_lane

_PASSES = 3


class Ledger:
    """All that a job has delivered and saved, and what it still owes.

    Args:
        mix: The top mixture of the job.
    """

    def __init__(self, mix):
        self.mix = mix
        self.leaves = dict(mix.leaves())
        self.delivered = Counter()
        self.repeats = self.allowed_repeats = 0
        self.short_rows, self.allowed_short_rows = Counter(), Counter()
        self.owed = set()
        """What `finish` waits for."""
        self._epochs = {}
        """(path, pass, epoch) by the seed of the epoch, as far as was needed."""
        self._num_seeds = Counter()
        self._may_repeat = any(part.function for part in mix.mixtures())
        bounded = any(leaf.max_epochs for leaf in self.leaves.values())
        self._counts_rows = not self._may_repeat and not bounded

    def add(self, tokens):
        """A sample is delivered.

        Raises:
            AssertionError: It, or a part of it, was delivered before.
        """
        for token in tokens:
            self.delivered[token] += 1
            self.owed.discard(token)
            if self.delivered[token] > 1:
                self.repeats += 1
                assert self._may_repeat, f"{self.told(token)} comes again"
                assert self.repeats <= self.allowed_repeats, (
                    f"{self.told(token)} comes again: number {self.repeats} of {self.allowed_repeats} that may"
                )
        path = tokens[0][0]
        if self._packs(path) and len(tokens) < ROW:
            self.short_rows[path] += 1

    def take_back(self, tokens):
        """It was not saved: it was not delivered."""
        for token in tokens:
            self.repeats -= self.delivered[token] > 1
            self.delivered[token] -= 1
            if not self.delivered[token]:
                del self.delivered[token]
        path = tokens[0][0]
        if self._packs(path) and len(tokens) < ROW:
            self.short_rows[path] -= 1

    def topology_ends(self, lanes, passes):
        """That many lanes end with what they had begun, in so many passes."""
        # A pass that ends with its first source leaves bursts open, so that a lane can have one in each.
        leaves_open = not self.mix.cyclic and any(part.stop == "first_exhausted" for part in self.mix.mixtures())
        self.allowed_repeats += lanes * self.mix.repeated() * (passes if leaves_open else 1)
        self.rows_end(lanes)

    def rows_end(self, lanes):
        """That many lanes may deliver a short row of each source."""
        for path in self.leaves:
            self.allowed_short_rows[path] += lanes

    def _packs(self, path):
        # Where yield functions join samples to others, the rows of one source cannot be told any more.
        return self._counts_rows and self.leaves[path].function.endswith("packer")

    def told(self, token):
        """A token in words."""
        path, _, value, *part = token
        _, number, epoch = self.epoch_of(token)
        return f"{path}: pass {number}, epoch {epoch}, record {value}, part {part}"

    def epoch_of(self, token):
        """(path, pass, epoch) of a token."""
        path, seed = token[:2]
        while seed not in self._epochs:
            self._learn_seeds(path)
        found = self._epochs[seed]
        assert found[0] == path, f"{path}: a seed of {found}"
        return found

    def _learn_seeds(self, path):
        start = self._num_seeds[path]
        self._num_seeds[path] = stop = max(10, 2 * start)
        assert stop < 100_000, f"{path}: the seed of no epoch"
        # A finite stream has a single epoch in each pass, an endless one few passes of many.
        numbers = product(range(_PASSES), range(start, stop)) if self.mix.cyclic else product(range(start, stop), [0])
        for number, epoch in numbers:
            self._epochs[stable_seed(*self.mix.seeds_of(path), number, epoch)] = (path, number, epoch)

    def newest(self):
        """The latest epoch of each (path, pass) of which anything was delivered."""
        newest = defaultdict(lambda: -1)
        for path, number, epoch in {self.epoch_of(token) for token in self.delivered}:
            newest[path, number] = max(newest[path, number], epoch)
        return newest

    def required(self, path, number, epoch):
        """All tokens of an epoch that must be delivered."""
        seed = stable_seed(*self.mix.seeds_of(path), number, epoch)
        over = self.mix.functions_over(path)
        values = (value for value in range(self.leaves[path].size) if (path, value) not in self.mix.skip)
        for value in values:
            for part in required_parts(self.leaves[path].function, value):
                for copy in _copies(over):
                    yield (path, seed, value, *part, *copy)

    def missing(self, until):
        """The tokens that were not delivered, of all epochs up to these, by (path, pass)."""
        return [
            token
            for (path, number), last in until.items()
            for epoch in range(last + 1)
            for token in self.required(path, number, epoch)
            if token not in self.delivered
        ]

    def check_known(self):
        """Nothing was delivered that is not in the sources."""
        known = {}
        for token in self.delivered:
            path, _, _, *part = token
            where = self.epoch_of(token)
            if where not in known:
                known[where] = set(self.required(*where))
            function, over = self.leaves[path].function, self.mix.functions_over(path)
            own = part[: len(part) - over.count("twice")]
            assert token in known[where] or is_optional(function, own), f"{self.told(token)}: no such token"

    def check_rows(self, ending):
        """Of packed rows that are short there are no more than lanes that ended, or are about to."""
        for path, count in self.short_rows.items():
            most = self.allowed_short_rows[path] + ending
            assert count <= most, f"{path}: {count} short rows, expected {most} at most"


def _copies(over):
    copies = [()]
    for function in over:
        if function == "twice":
            copies = [(*part, copy) for part in copies for copy in range(2)]
    return copies


class Rests:
    """The dealing rule over lists, for sources whose records are blocks and samples: which record comes next in a lane.

    Of each source and pass there is one sequence. A lane reads some of what is left before an offset, and then the
    numbers `offset + l`, `offset + l + L` … of the sequence. When the size changes, the next offset lies behind the
    lane that is furthest.

    Args:
        mix: The top mixture of the job.
        size: How much of a sequence is listed.
    """

    def __init__(self, mix, size=3000):
        self._mix, self._size, self._leaves = mix, size, dict(mix.leaves())
        self._sequences, self._left, self._kept = {}, {}, {}
        self._read, self._shares = {}, {}
        self._held = {}, {}
        self.leaves = {path for path, leaf in mix.leaves() if leaf.is_listed and not mix.functions_over(path)}
        self.leaves -= {path for path, _ in mix.skip}
        # What a lane has left where it ends before its sources do is not dealt out.
        if any(not part.cyclic and part.stop == "first_exhausted" for part in mix.mixtures()):
            self.leaves = set()

    def check(self, token, taken, lane, lanes):
        """The record must be the next of its source in the lane, which had taken this many of it.

        Args:
            token: Of the record, with the pass in place of the seed's.
            taken: How many the lane had taken since the size last changed.
            lane: Its number.
            lanes: How many there are.
        """
        key = token[:2]
        number = self._sequence(*key).get(token[2:])
        if number is None:
            assert not self._leaves[token[0]].max_epochs, f"{key}: beyond its last epoch"
            return
        offset, left = self._left.get(key, (0, frozenset()))
        self._read[*key, lane, taken] = number
        if number < offset:
            assert number in left, f"{key}: number {number} before {offset} was delivered before"
            assert taken < self._shares.get((*key, lane), self._size), f"{key}: lane {lane} had read its leftovers"
            return
        own = self._shares.setdefault((*key, lane), taken)
        expected = offset + lane + (taken - own) * lanes
        assert number == expected, f"{key}: lane {lane} of {lanes} after {taken} records: {number}, not {expected}"

    def deal(self, taken, lanes):
        """The size changes; the lanes had taken this many of each (path, pass), by lane."""
        for key in {key[:2] for key in taken}:
            offset, left = self._left.get(key, (0, frozenset()))
            read = [
                self._read.get((*key, lane, at)) for lane in range(lanes) for at in range(taken.get((*key, lane), 0))
            ]
            rows = [
                max(0, taken.get((*key, lane), 0) - self._shares.get((*key, lane), self._size)) for lane in range(lanes)
            ]
            after = offset + max(rows) * lanes
            self._left[key] = after, (left | set(range(offset, after))) - set(read)
        self._held = self._read, self._shares
        self._read, self._shares = {}, {}

    def keep(self):
        """Something was saved under the present size."""
        self._kept = dict(self._left)

    def discard(self):
        """Nothing was: the size before it still stands."""
        self._left = dict(self._kept)
        self._read, self._shares = self._held

    def _sequence(self, path, number):
        if (path, number) not in self._sequences:
            records = _sequence(self._mix, path, number, self._size)
            self._sequences[path, number] = {record: at for at, record in enumerate(records)}
        return self._sequences[path, number]


def _sequence(mix, path, number, size):
    """(epoch, value) of the one sequence of a source, as a single lane reads it that has nothing else."""
    from tests.elastic.worlds import Config

    keep = {path[:end] for end in range(len(path) + 1) if path[end : end + 1] in ("", ".")}
    alone = mix.build(Config(absent=frozenset(set(mix.paths()) - keep)))
    alone.set_epoch(number)
    values = [sample["value"] for _, sample in zip(range(size), in_lane(alone, 0, 1), strict=False)]
    leaf = dict(mix.leaves())[path]
    return [(at // leaf.size, value) for at, value in enumerate(values)]

"""Process functions of every kind, over records that know which tokens they stand for.

A token is (path of the source, seed of its epoch, value of the record, part): what must be delivered exactly once. A
sample says which ones it delivers; one that no function made delivers the single token of its record.
"""

from itertools import islice, pairwise

from streamdata import GroupByLength, PackTokens

ROW = 6
"""Tokens in a packed row."""
LOOKAHEAD = 4
"""Samples that are planned at once."""


def value_of(record):
    """The number of a record within its source, whatever kind of source it is."""
    return record["value"] if "value" in record else int(record["txt"].split()[-1])


def scattered(value):
    """What functions go by: unlike the value itself, it leaves no lane of an unshuffled source without samples."""
    return (value * 2654435761 & 0xFFFFFFFF) >> 15


def token(record, part=0):
    """One token of a record."""
    return record["__datasetname__"], record["__seed__"], value_of(record), part


def tokens_of(sample):
    """What a sample delivers."""
    return sample["tokens"] if "tokens" in sample else [token(sample)]


def split(record):
    """None, one, two or three samples."""
    return [{"tokens": [token(record, part)]} for part in range(scattered(value_of(record)) % 4)]


def wanted(record):
    """Two of three."""
    return record if scattered(value_of(record)) % 3 else None


def failing(record):
    """Fails for some."""
    if scattered(value_of(record)) % 11 == 5:
        raise KeyError("five")
    return record


def sift(records):
    """Leaves out a fifth."""
    return (record for record in records if scattered(value_of(record)) % 5)


def echo(records):
    """Three samples of each."""
    for record in records:
        for part in range(3):
            yield {"tokens": [(*token, part) for token in tokens_of(record)]}


def joined(records):
    """One sample of three records; the last may have fewer."""
    for first in records:
        yield {"tokens": [token for record in (first, *islice(records, 2)) for token in tokens_of(record)]}


def irregular(records):
    """Pulls two and yields three samples, the third of which stands for the second record again."""
    for first in records:
        both = [first, *islice(records, 1)]
        for record in both:
            yield {"tokens": [(*token, 0) for token in tokens_of(record)]}
        yield {"tokens": [(*token, 1) for token in tokens_of(both[-1])]}


def brittle(records):
    """Fails at some, with nothing else in hand."""
    for record in records:
        if scattered(value_of(record)) % 13 == 7:
            raise KeyError("seven")
        yield record


class TokenPacker:
    """Rows of `ROW` tokens; holds back what fills no row, and says how many records it needs for that again."""

    def __init__(self):
        self.state = {"rewind": 0, "skip": 0}

    def state_dict(self):
        """What it holds."""
        return {"rewind": len(self.held), "skip": self.skip}

    def load_state_dict(self, state):
        """Begin with what it held."""
        self.state = state

    def tokens(self, record):
        """Those of a record."""
        return tokens_of(record)

    def __call__(self, records):
        self.held, self.skip = [], self.state["skip"]
        for record in records:
            self.held.append(self.tokens(record))
            while sum(map(len, self.held)) - self.skip >= ROW:
                yield {"tokens": self._take()}
        while sum(map(len, self.held)) - self.skip > 0:
            yield {"tokens": self._take()}

    def _take(self):
        flat = [token for part in self.held for token in part][self.skip :]
        self.skip += ROW
        while self.held and self.skip >= len(self.held[0]):
            self.skip -= len(self.held.pop(0))
        if not self.held:
            self.skip = 0
        return flat[:ROW]


class DocumentPacker(TokenPacker):
    """The same, of records of one to five tokens."""

    def tokens(self, record):
        return [token(record, part) for part in range(scattered(value_of(record)) % 5 + 1)]


class Rows(PackTokens):
    """Rows of documents of one to eight tokens by best fit; those longer than a row are in two of them."""

    def __init__(self):
        super().__init__(ROW, LOOKAHEAD, longer="split")

    def __call__(self, records):
        for row in super().__call__(map(self.sample, records)):
            pieces = zip(row["owner"], pairwise(row["cu_seqlens"].tolist()), strict=True)
            ids = row["input_ids"].tolist()
            yield {"tokens": [owner[part] for owner, (begin, end) in pieces for part in ids[begin:end]]}

    def sample(self, record):
        """What it packs: ids that are the places of tokens."""
        tokens = self.tokens(record)
        return {"input_ids": list(range(len(tokens))), "owner": dict(enumerate(tokens))}

    def tokens(self, record):
        """Those of a record."""
        return [token(record, part) for part in range(scattered(value_of(record)) % 8 + 1)]


class SampleRows(Rows):
    """The same, of whatever samples deliver."""

    def tokens(self, record):
        return tokens_of(record)


class Groups(GroupByLength):
    """Groups of records of one to five tokens, at most `ROW` of them with padding."""

    def __init__(self):
        super().__init__(ROW, LOOKAHEAD)

    def __call__(self, records):
        for group in super().__call__({**record, "input_ids": [0] * self.length(record)} for record in records):
            yield {
                "tokens": [
                    token(record, part) for record in group["samples"] for part in range(len(record["input_ids"]))
                ]
            }

    def length(self, record):
        """Tokens of a record."""
        return scattered(value_of(record)) % 5 + 1


def pairs(samples):
    """One sample of two, whichever sources they are of; over a merged stream."""
    for first in samples:
        yield {"tokens": [token for sample in (first, *islice(samples, 1)) for token in tokens_of(sample)]}


def twice(samples):
    """Two samples of each; over a merged stream."""
    for sample in samples:
        for part in range(2):
            yield {"tokens": [(*token, part) for token in tokens_of(sample)]}


FUNCTIONS = {
    "plain": {},
    "split": {"single_process_fn": split},
    "wanted": {"single_process_fn": wanted},
    "failing": {"single_process_fn": failing, "max_bad": 10**6},
    "sift": {"process_fn": sift},
    "echo": {"process_fn": echo},
    "joined": {"process_fn": joined},
    "irregular": {"process_fn": irregular},
    "brittle": {"process_fn": brittle, "max_bad": 10**6},
    "packer": {"process_fn": DocumentPacker()},
    "rows": {"process_fn": Rows()},
    "groups": {"process_fn": Groups()},
    "split, joined": {"single_process_fn": split, "process_fn": joined},
    "split, irregular": {"single_process_fn": split, "process_fn": irregular},
    "split, packer": {"single_process_fn": split, "process_fn": TokenPacker()},
    "split, rows": {"single_process_fn": split, "process_fn": SampleRows()},
}
"""What they are called, and the attributes of a source that has them."""

YIELDS = {"pairs": pairs, "twice": twice, "packed": TokenPacker(), "rows": SampleRows()}
"""Functions over a merged stream."""

VARIANTS = {"packer": ("rows", "groups"), "split, packer": ("split, rows",), "packed": ("rows",)}
"""What may stand in the place of another: random jobs draw them last, so that a seed of old is the job that it was."""


_ROWS = ("packer", "split, packer", "rows", "split, rows", "groups")
MAX_TOKENS = dict.fromkeys(_ROWS, ROW) | {"joined": 3, "split, joined": 3}
"""Of one sample, where it may have several."""


def required_parts(function, value):
    """What follows the value in the tokens of a record that must be delivered: each exactly once."""
    counts = {
        "split": scattered(value) % 4,
        "wanted": scattered(value) % 3 != 0,
        "failing": scattered(value) % 11 != 5,
        "brittle": scattered(value) % 13 != 7,
        "sift": scattered(value) % 5 != 0,
        "packer": scattered(value) % 5 + 1,
        "groups": scattered(value) % 5 + 1,
        "rows": scattered(value) % 8 + 1,
    }
    parts = [(part,) for part in range(counts.get(function.partition(",")[0], 1))]
    if function == "echo":
        return [(*part, copy) for part in parts for copy in range(3)]
    # Beside these, `irregular` makes a sample more of each second record: of which, depends on the lane.
    return [(*part, 0) for part in parts] if function.endswith("irregular") else parts


def is_optional(function, part):
    """Whether a token with this part may be delivered once, or not at all."""
    return function.endswith("irregular") and part[-1] == 1


def burst_tokens(function, most):
    """How many tokens of one burst of a yield function may have been delivered, of samples of so many tokens."""
    return {
        "packed": ROW + 2 * most,
        # It plans over LOOKAHEAD samples, or as many as are more than a row.
        "rows": max(LOOKAHEAD * most, ROW + most),
    }.get(function, 2 * most)


def yielded_tokens(function, most):
    """How many tokens a sample that it yields may have."""
    return {"packed": ROW, "rows": ROW, "pairs": 2 * most, "twice": most}[function]

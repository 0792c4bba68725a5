"""Process functions of every kind, over records that know which tokens they stand for.

A token is (path of the source, seed of its epoch, value of the record, part): what must be delivered exactly once. A
sample says which ones it delivers; one that no function made delivers the single token of its record.
"""

from itertools import islice

ROW = 6
"""Tokens in a packed row."""


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
    "split, joined": {"single_process_fn": split, "process_fn": joined},
    "split, irregular": {"single_process_fn": split, "process_fn": irregular},
    "split, packer": {"single_process_fn": split, "process_fn": TokenPacker()},
}
"""What they are called, and the attributes of a source that has them."""

YIELDS = {"pairs": pairs, "twice": twice, "packed": TokenPacker()}
"""Functions over a merged stream."""


MAX_TOKENS = {"packer": ROW, "split, packer": ROW, "joined": 3, "split, joined": 3}
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
    return ROW + 2 * most if function == "packed" else 2 * most


def yielded_tokens(function, most):
    """How many tokens a sample that it yields may have."""
    return {"packed": ROW, "pairs": 2 * most, "twice": most}[function]

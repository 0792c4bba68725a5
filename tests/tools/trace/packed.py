"""Random jobs of a function over all sources, of which `report` counts after every step what the loop has logged.

A token says where in its document it stands, so that a row alone says which documents come to their end in it. The log
of a loop that is killed goes on where its states were saved; what comes again after a change is logged again.
"""

import json
import random
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from streamdata import (
    Cost,
    GroupByLength,
    MergedDataset,
    PackTokens,
    SourceError,
    TextJsonlProcessFnBuilder,
    merge_states,
    report,
    to_state,
)
from streamdata.errors import StateError
from streamdata.states.progress import Progress, history_of
from streamdata.text.tokenizer import end_token
from tests.elastic.functions import scattered, value_of
from tests.elastic.worlds import Config, Leaf
from tests.streams import Numbers, loaded
from tests.text.tiny_tokenizer import save_tiny_tokenizer
from tests.tools.trace.jobs import random_leaf

ROW, LOOKAHEAD = 8, 5
BASE = 16
"""Documents have fewer tokens."""
LENGTHS = {"short": (1, ROW), "long": (1, 12), "any": (0, 12)}
"""The fewest and the most tokens of a document. Where there may be none, or more than a row takes, it is in no row."""


@dataclass(frozen=True)
class Documents:
    """A function of a record, by its kind: one document, of some records none, or up to two; or it fails at some."""

    kind: str
    lengths: str
    are_texts: bool

    def __call__(self, record):
        value = value_of(record)
        if self.kind == "failing" and not self.number(value):
            raise KeyError("none")
        return [self.document(value + 7 * part) for part in range(self.number(value))]

    def number(self, value):
        """How many documents it makes of a record."""
        if self.kind == "several":
            return scattered(value) % 3
        return int(self.kind not in ("some", "failing") or scattered(value) % 4 != 1)

    def document(self, value):
        """Some tokens, each of which says how many there are and how many follow; or some words."""
        fewest, most = LENGTHS[self.lengths]
        size = fewest + scattered(value) % (most + 1 - fewest)
        return {"text": "the cat " * size} if self.are_texts else {"input_ids": BASE * size + np.arange(size)[::-1]}


class Bare(Numbers):
    """A source of documents, without functions."""

    def __getitem__(self, index):
        return self.make.document(super().__getitem__(index)["value"])


class PackedSource(PackTokens):
    """Packs one source: the function over all sources takes its rows for documents."""

    def __init__(self):
        super().__init__(ROW, LOOKAHEAD, longer="split")

    def __call__(self, records):
        for row in super().__call__(records):
            yield {"input_ids": row["input_ids"].numpy()}


class Untold(GroupByLength):
    """Has a state, and does not say which samples have come to their end."""

    @property
    def ended_pulls(self):
        raise AttributeError("ended_pulls")

    @ended_pulls.setter
    def ended_pulls(self, numbers):
        pass


def each(samples):
    """One of each, without a state."""
    for sample in samples:
        yield {"samples": [sample]}


def pairs(samples):
    """One of two."""
    for first in samples:
        yield {"samples": [first, *islice(samples, 1)]}


def twice(samples):
    """Two of each, which is logged with the first."""
    for sample in samples:
        yield {"samples": [sample]}
        yield {"samples": []}


_folder = cache(lambda: TemporaryDirectory(prefix="packed-"))
_tokenizer = cache(lambda: save_tiny_tokenizer(Path(_folder().name)))

TOPS = {
    "rows": lambda: PackTokens(ROW, LOOKAHEAD),
    "padded": lambda: PackTokens(ROW, LOOKAHEAD, document_multiple=2, row_multiple=4),
    "split": lambda: PackTokens(ROW, LOOKAHEAD, longer="split"),
    "truncate": lambda: PackTokens(ROW, LOOKAHEAD, longer="truncate"),
    "drop": lambda: PackTokens(ROW, LOOKAHEAD, longer="drop"),
    "balance": lambda: PackTokens(ROW, balance=Cost(1, 1), rows=4),
    "groups": lambda: GroupByLength(ROW, LOOKAHEAD),
    "split groups": lambda: GroupByLength(ROW, LOOKAHEAD, longer="split"),
    "balanced groups": lambda: GroupByLength(ROW, balance=Cost(1, 1), groups=4),
    "texts": lambda: TextJsonlProcessFnBuilder(ROW, _tokenizer()),
    "each": lambda: each,
    "pairs": lambda: pairs,
    "twice": lambda: twice,
    "untold": lambda: Untold(ROW, LOOKAHEAD),
}
"""Functions over all sources."""


@dataclass(frozen=True)
class Job:
    """What stays as it is while a job goes on."""

    top: str
    leaves: tuple[tuple[str, Leaf, str], ...]
    """The path of each source, the source, and what it makes of its records."""
    lengths: str
    cyclic: bool
    stop: str

    @property
    def paths(self):
        """Of the sources."""
        return [path for path, _, _ in self.leaves]

    def build(self, weights):
        """The dataset."""
        sources = [self._source(leaf, kind, weights[path]) for path, leaf, kind in self.leaves if "." not in path]
        nested = [self._source(leaf, kind, weights[path]) for path, leaf, kind in self.leaves if "." in path]
        ends = {"cyclic": self.cyclic, "stop": self.stop, "seed": 7}
        if nested:
            sources.append(MergedDataset(nested, name="inner", percent=weights["inner"], **ends))
        return MergedDataset(sources, customized_yield_fn=TOPS[self.top](), **ends)

    def _source(self, leaf, kind, percent):
        if kind == "bare":
            return Bare(leaf.name, leaf.size, percent, make=self.documents(kind))
        source = leaf.build(percent)
        source.single_process_fn = self.documents(kind)
        source.max_bad = 10**6
        if kind == "packed":
            source.process_fn = PackedSource()
        return source

    def documents(self, kind):
        """The function of the records of such a source."""
        return Documents(kind, self.lengths, are_texts=self.top == "texts")

    def logged(self, row, names):
        """What came to its end in a row: samples, tokens and records of each source."""
        found = Counter({("rows", ""): 1})
        for number, output, ids in self._documents(row):
            size, left = divmod(int(ids[-1]), BASE)
            is_whole = left == 0 or self.top == "truncate"
            path = names[number]
            kind = self.leaves[self.paths.index(path)][2]
            if kind == "packed":
                found["samples", path] += 1
                found["tokens", path] += len(ids)
                found["records", path] += int((ids % BASE == 0).sum())
            elif is_whole:
                found["samples", path] += 1
                found["tokens", path] += 0 if self.top == "texts" else size
                found["records", path] += output == 0
        return found

    def _documents(self, row):
        """Of each document, or piece of one, its source, the number of the sample of its record, and its tokens."""
        if "samples" in row:
            records = [sample["__record__"] for sample in row["samples"]]
            samples = zip(records, (sample["input_ids"] for sample in row["samples"]), strict=True)
            return [(record[0], record[3], np.asarray(ids)) for record, ids in samples if len(ids)]
        if self.top == "texts":
            begins = np.append(np.flatnonzero(row["position_ids"] == 0), len(row["tokens"]))
            # A piece ends its document with the end token: as if so many tokens followed.
            pieces = [np.array([row["tokens"][end - 1] != end_token(_tokenizer())], int) for end in begins[1:]]
        else:
            bounds = row.get("cu_seqlens_padded", row["cu_seqlens"]).tolist()
            sizes = np.diff(row["cu_seqlens"]).tolist()
            ids = row["input_ids"].numpy()
            pieces = [ids[begin : begin + size] for (begin, _), size in zip(pairwise(bounds), sizes, strict=True)]
        numbers = zip(row["source_ids"].tolist(), row["record_ids"][:, 2].tolist(), pieces, strict=True)
        return [piece for piece in numbers if piece[0] >= 0]


def random_packed(rng):
    """A job whose functions fit together."""
    top = rng.choice([*TOPS])
    lengths = "short"
    if top in ("split", "truncate", "split groups", "texts"):
        lengths = rng.choice(["long", "any"])
    elif top == "drop":
        lengths = "any"
    kinds = ["bare", "one", "some", "several", "failing"] + ["packed"] * (lengths == "short")
    leaves = [(random_leaf(rng, name), rng.choice(kinds)) for name in "abcd"[: rng.randint(2, 4)]]
    is_nested = rng.random() < 0.4
    paths = [f"inner.{leaf.name}" if number and is_nested else leaf.name for number, (leaf, _) in enumerate(leaves)]
    leaves = tuple((path, leaf, kind) for path, (leaf, kind) in zip(paths, leaves, strict=True))
    return Job(top, leaves, lengths, rng.random() < 0.4, rng.choice(["all_exhausted", "first_exhausted"]))


def check_packed(seed):
    """Compare what `report` counts after each step of a random job with its log; return how many samples there were."""
    rng = random.Random(seed)
    job, states, log, comes_again = random_packed(rng), {}, Counter(), False
    config = Config(weights=_weights(rng, job))
    for epoch_pass in range(1 if job.cyclic else rng.randint(1, 2)):
        legs = [rng.randint(1, 12) for _ in range(rng.randint(1, 4))]
        for most in legs if job.cyclic else [*legs, None]:
            try:
                steps = _steps(job, config, states, epoch_pass, most)
            except SourceError:  # of a share of one or two records nothing may be left
                return _num_samples(log)
            except StateError as error:  # of such a share a rank may have given nothing, and stock states lack it
                if "they hold nothing of rank" not in str(error):
                    raise
                return _num_samples(log)
            for joined, logged in steps:
                _check_step(job, joined, log + logged, is_exact=job.top != "untold")
            # Killed, and resumed from what was saved some steps before; but for what ends the pass.
            states, logged = steps[-1 if most is None else rng.randrange(len(steps))]
            log = log + logged
            changes = {"dp_size": rng.randint(1, 3), "num_workers": rng.randint(0, 3)} if rng.random() < 0.4 else {}
            changes |= {"weights": _weights(rng, job)} if rng.random() < 0.3 else {}
            comes_again = comes_again or (most is not None and bool(changes))
            config = replace(config, batch_size=rng.randint(1, 4), **changes)
        if not job.cyclic:
            assert "uncounted" not in report(states)
            for path, leaf, kind in job.leaves if job.stop == "all_exhausted" and not comes_again else ():
                if kind != "packed":
                    made = sum(map(job.documents(kind).number, range(leaf.size)))
                    assert report(states).get(f"samples/{path}", 0) == made * (epoch_pass + 1), path
    return _num_samples(log)


def _num_samples(log):
    return sum(count for (what, _), count in log.items() if what == "samples")


def _weights(rng, job):
    return {path: rng.choice([0.3, 1, 3]) for path in [*job.paths, "inner"]}


def _steps(job, config, states, epoch_pass, most):
    """The joined states of all ranks after each step, and what they have logged since the resume."""
    ranks = []
    for rank in range(config.dp_size):
        dataset = job.build(config.weights)
        dataset.set_data_parallel(config.dp_size, rank)
        dataset.set_dataloader_states(states)
        dataset.set_epoch(epoch_pass)
        own, logged, found = dict(states), Counter(), []
        for batch in islice(loaded(dataset, config.num_workers, config.batch_size), most):
            own = own | to_state(batch)
            for row in batch:
                logged = logged + job.logged(row, dataset.source_names)
            found.append((own, logged))
        ranks.append(found or [(own, logged)])
    steps = []
    for step in range(max(map(len, ranks))):
        owns, logs = zip(*(found[min(step, len(found) - 1)] for found in ranks), strict=True)
        steps.append((json.loads(json.dumps(merge_states(*owns))), sum(logs, Counter())))
    return steps


def _check_step(job, states, log, *, is_exact):
    found, drawn = report(states), 0
    assert not is_exact or "uncounted" not in found
    assert found["samples"] == log["rows", ""]
    for path, leaf, _ in job.leaves:
        samples, tokens, records, epochs, dropped, bad = (
            found.get(f"{name}/{path}", 0) for name in ("samples", "tokens", "records", "epochs", "dropped", "bad")
        )
        drawn += samples
        assert epochs == records / leaf.size, path
        if not is_exact:
            assert samples <= log["samples", path], path
        elif job.lengths != "any":
            assert (samples, tokens) == (log["samples", path], log["tokens", path]), path
            # Where no record is counted, as none is of sources without functions, there are as many as samples.
            assert records - dropped - bad == (log["records", path] or samples), path
        else:  # what is empty or too long is in no row: it counts when the burst is over
            assert samples >= log["samples", path], path
            assert tokens >= log["tokens", path], path
            assert records - dropped >= log["records", path], path
    assert sum(line["samples"] for line in history_of(Progress(states))) == drawn

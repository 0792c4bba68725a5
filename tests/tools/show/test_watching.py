"""Watched functions: samples come with their records, and the stream is as it is without."""

import json
from itertools import islice

import pytest
import torch
from torch.utils.data import DataLoader

from streamdata import JsonlIterableDataset, MergedDataset, PackTokens, mixed_collate, to_state
from streamdata.tools.show.model import WHOLE
from streamdata.tools.show.streams import MixtureSamples, Place, delivered
from tests.streams import Numbers, plain


class Pairs:
    """A stateful stream function: two records make a sample, and the last one waits for the next."""

    def __init__(self):
        self.held = []

    def __call__(self, records):
        for record in records:
            self.held.append(record["value"])
            if len(self.held) == 3:
                yield {"values": torch.tensor(self.held)}
                del self.held[:2]

    def state_dict(self):
        return {"rewind": len(self.held)}

    def load_state_dict(self, state):
        self.held.clear()


def halves(record):
    """Two samples of an even number, none of an odd one; it changes its record."""
    value = record.pop("value")
    return None if value % 2 else [{"half": value // 2, "part": part} for part in range(2)]


def tokens_of_value(record):
    """1 to 5 token ids."""
    return {"input_ids": torch.full((1 + record["value"] % 5,), record["value"])}


def mixture():
    """A source with each kind of function, and one without."""
    sources = [
        Numbers("pairs", 40, process_fn=Pairs()),
        Numbers("halves", 30, single_process_fn=halves),
        Numbers("bare", 20),
    ]
    return MergedDataset(sources, seed=3)


def test_the_stream_and_its_states_are_as_without():
    """Of stateful functions, too; also after a resume."""
    states, bare, watched = {}, mixture(), mixture()
    MixtureSamples(watched, Place())
    for expected, sample in islice(zip(bare, watched, strict=True), 40):
        sample.pop("__records__", None)
        assert plain(sample) == plain(expected)
        assert to_state(sample) == to_state(expected)
        states.update(to_state(sample))
    resumed, again = mixture(), json.loads(json.dumps(states))
    MixtureSamples(resumed, Place())
    found = [plain({**sample, "__records__": 0}) for sample in islice(resumed.__iter_from__(again), 20)]
    assert found == [plain({**sample, "__records__": 0}) for sample in islice(mixture().__iter_from__(states), 20)]


def test_a_sample_comes_with_its_records():
    """Those that were read for it, as they were before its function changed them."""
    dataset = mixture()
    views = MixtureSamples(dataset, Place())
    found = {}
    for number, sample in enumerate(islice(dataset, 12)):
        found.setdefault(sample["__datasetname__"], []).append((sample, views.shown(sample, number)))
    sample, view = found["halves"][0]
    (value,) = [field.text for record in view.records for field in record.fields]
    assert int(value) == 2 * sample["half"]
    sample, view = found["pairs"][1]
    assert [int(record.fields[0].text) for record in view.records] == sample["values"][1:].tolist()
    assert view.records[0].where.startswith("index ")
    assert found["bare"][0][1].records == ()


def test_one_source_alone_is_as_among_the_others():
    """Its samples in the same order, without reading the rest."""
    among = [plain(sample) for sample in islice(mixture(), 40) if sample["__datasetname__"] == "bare"]
    alone = [plain(sample) for _, sample in islice(delivered(mixture(), Place(source="bare")), len(among))]
    assert alone == among


def test_a_step_of_a_rank_is_what_it_was_given():
    """After states, and of a run that has not begun."""
    states, steps = {}, []
    for (sample,) in islice(DataLoader(mixture(), batch_size=1, collate_fn=mixed_collate), 9):
        steps.append(plain(sample))
        states.update(to_state([sample]))
    found = [(step, plain(sample)) for step, sample in islice(delivered(mixture(), Place(step=5, states=[states])), 5)]
    assert found == list(enumerate(steps, 1))[4:]
    ((step, _),) = islice(delivered(mixture(), Place(states=[states])), 1)
    assert step == 10
    assert len(list(islice(delivered(mixture(), Place(step=2, rank=1, dp_size=2, batch=3)), 4))) == 4


def test_the_documents_of_a_row_are_named(tmp_path):
    """With their tokens, in place of the numbers that batches carry."""
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"input_ids": [number] * 3}) + "\n" for number in range(4)))

    def make():
        source = JsonlIterableDataset(str(tmp_path), name="lines", percent=1, process_fn=PackTokens(6))
        return MergedDataset([source], seed=1)

    first, second = next(iter(make()))["input_ids"][[0, 3]].tolist()
    (sample,) = MixtureSamples(make(), Place()).page("rows", 1).samples
    fields = {field.name: field for field in sample.fields}
    assert {"source_ids", "record_ids"}.isdisjoint(fields)
    url = tmp_path / "a.jsonl"
    assert fields["documents"].text == f"tokens 0 to 2: {url}#{first}\ntokens 3 to 5: {url}#{second}"


def test_documents_of_one_source_are_named_where_others_are_not_shown(tmp_path):
    """Which are left out of the mixture then."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"input_ids": [1, 2]}) + "\n")
    sources = [
        JsonlIterableDataset(str(tmp_path / f"{name}.jsonl"), name=name, percent=1, process_fn=PackTokens(3))
        for name in ("a", "b")
    ]
    (sample,) = MixtureSamples(MergedDataset(sources), Place(source="b")).page("rows", 1).samples
    (text,) = [field.text for field in sample.fields if field.name == "documents"]
    assert text == f"tokens 0 to 1: {tmp_path / 'b.jsonl'}#0"


@pytest.mark.parametrize("where", ["source", "mixture"])
def test_a_packed_row_comes_with_records_of_its_own_documents(where):
    """Never with one that its packer holds for a later row; its heading names the last of its documents."""
    packer = PackTokens(16, lookahead=9)
    fns = {"single_process_fn": tokens_of_value, "process_fn": packer if where == "source" else None}
    sources = [Numbers("a", 40, **fns), Numbers("b", 30, **fns)]
    dataset = MergedDataset(sources, seed=3, customized_yield_fn=packer if where == "mixture" else None)
    views, numbers = MixtureSamples(dataset, Place(), WHOLE), []
    for row in islice(dataset, 12):
        names, values = [dataset.source_names[number] for number in row["source_ids"]], row["record_ids"][:, 1].tolist()
        view = views.shown(row, 0)
        assert (view.source, view.index, view.where) == (names[-1], values[-1], f"index {values[-1]}")
        documents = next(field.text for field in view.fields if field.name == "documents")
        assert [line.rpartition(": ")[2] for line in documents.split("\n")] == [*map("{}#{}".format, names, values)]
        numbers.append(len(view.records))
        assert {record.where for record in view.records} <= {f"index {value}" for value in values}
    assert any(numbers) == (where == "source")

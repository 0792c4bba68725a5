"""Errors of functions that run in workers, as the trainer sees them."""

import re

import pytest
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from streamdata import MergedDataset, StreamLoader, mixed_collate
from tests.streams import Numbers, raises_in_worker


class TwoPartsError(Exception):
    """One that a single text does not make, and that torch tries to make by its `message`."""

    def __init__(self, where, why):
        super().__init__(where, why)

    @property
    def message(self):
        return self.args[1]


class FixedError(Exception):
    """One that says the same whatever it is made of."""

    def __init__(self, *_):
        super().__init__("what went wrong")


class CodedError(Exception):
    """One whose text cannot be made of a text."""

    def __init__(self, code):
        super().__init__("what went wrong", code)
        self.code = code

    def __str__(self):
        return f"what went wrong: {self.code:d}"


class SilentError(Exception):
    """One whose text always fails."""

    def __str__(self):
        raise RuntimeError("no text")


class OwnKeyError(KeyError):
    """One of a family that torch knows."""


def local():
    """One that cannot be pickled, of which torch would send nothing."""

    class LocalError(Exception):
        pass

    return LocalError("what went wrong")


KINDS = {
    "group": (lambda: ExceptionGroup("what went wrong", [ValueError("a")]), RuntimeError),
    "local": (local, RuntimeError),
    "two parts": (lambda: TwoPartsError("here", "what went wrong"), RuntimeError),
    "fixed": (FixedError, RuntimeError),
    "coded": (lambda: CodedError(5), RuntimeError),
    "silent": (lambda: SilentError("what went wrong"), RuntimeError),
    "unicode": (lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "what went wrong"), RuntimeError),  # by torch
    "key": (lambda: KeyError("what went wrong"), KeyError),
    "own key": (lambda: OwnKeyError("what went wrong"), OwnKeyError),
    "value": (lambda: ValueError("what went wrong"), ValueError),
}


def failing(make):
    """A stream whose function raises at its fourth record."""

    def fail(record):
        if record["value"] % 10 == 3:
            raise make()
        return record

    return MergedDataset([Numbers("a", 40, single_process_fn=fail)], cyclic=False)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_function_raises_in_a_worker_says_what_and_where_in_the_trainer(kind):
    """Whatever its class does with a text; it keeps its type where torch can raise it again."""
    make, expected = KINDS[kind]
    batches = DataLoader(failing(make), 4, num_workers=1, collate_fn=mixed_collate, multiprocessing_context="fork")
    with raises_in_worker(expected, "what went wrong") as caught:
        list(batches)
    assert caught.type is expected
    assert re.search(r"source .{1,2}a.{1,2}: single_process_fn failed at index \d+", str(caught.value))


@pytest.mark.parametrize("kind", KINDS)
def test_without_workers_it_is_the_error_itself(kind):
    """With the place as a note."""
    error = KINDS[kind][0]()

    def raise_it():
        raise error

    with pytest.raises(type(error)) as caught:
        list(failing(raise_it))
    assert caught.value is error
    assert "source 'a': single_process_fn failed at index" in caught.value.__notes__[0]


def test_what_a_stream_function_raises_in_a_worker_says_so_too():
    """It takes the same way."""

    def fail(records):
        next(records)
        raise ExceptionGroup("what went wrong", [ValueError("a")])
        yield

    dataset = MergedDataset([Numbers("a", 40, process_fn=fail)], cyclic=False)
    batches = DataLoader(dataset, 4, num_workers=2, collate_fn=mixed_collate, multiprocessing_context="fork")
    with raises_in_worker(RuntimeError, r"what went wrong[\s\S]*source 'a': process_fn failed at index"):
        list(batches)


def raise_local(samples):
    """A collate function that fails at one batch."""
    if any(sample["value"] == 13 for sample in samples):
        raise local()
    return samples


def with_function(samples):
    """One that puts into a batch what cannot be pickled."""
    return [{**sample, "by": lambda: 1} if sample["value"] == 13 else sample for sample in samples]


@pytest.mark.parametrize("collate", [raise_local, with_function])
@pytest.mark.parametrize(
    "loader",
    [
        lambda dataset, collate: DataLoader(dataset, 4, num_workers=2, collate_fn=collate),
        lambda dataset, collate: StreamLoader(dataset, 4, 2, collate),
    ],
)
def test_a_batch_that_cannot_be_sent_is_not_left_out_in_silence(loader, collate, capfd, monkeypatch):
    """Torch would deliver the others; where the pass went on, it would wait for ever."""
    # Torch looks for dead workers when it has waited for so many seconds, 5 else.
    monkeypatch.setattr(_MultiProcessingDataLoaderIter._try_get_data, "__defaults__", (0.2,))
    batches = loader(MergedDataset([Numbers("a", 40)], cyclic=False), collate)
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        list(batches)
    assert "streamdata: expected a batch that can be sent to the trainer" in capfd.readouterr().err

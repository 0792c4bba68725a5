import random
from collections.abc import Callable

import pytest

from streamdata import MergedDataset
from streamdata.tools.view.exactness import Inexact, find_inexact
from tests.streams import Numbers, NumbersAhead
from tests.tools.view.functions import Totals, failing, noisy, odd, pairs, same, seeded, totals


class Augmented(Numbers):
    def __getitem__(self, index: int) -> dict:
        return {"value": index, "flip": random.random()}


def found(make_source: Callable[[], object], **options: object) -> list[Inexact]:
    """What is found in a mixture of this source, with a hundredth of the weight, and an innocent one."""
    return find_inexact(lambda: MergedDataset([make_source(), Numbers("b", 90, 99)], **options))


def numbers(**functions: object) -> Callable[[], Numbers]:
    """A source of 40 numbers."""
    return lambda: Numbers("a", 40, **functions)


@pytest.mark.parametrize("function", [same, odd, seeded])
def test_exact_per_record_functions_pass(function: Callable) -> None:
    """Also one that drops records, and one that draws from record_rng."""
    assert found(numbers(single_process_fn=function)) == []


@pytest.mark.parametrize("make_function", [lambda: pairs, Totals])
@pytest.mark.parametrize("cyclic", [True, False])
def test_exact_stream_functions_pass(make_function: Callable, cyclic: bool) -> None:
    """One that holds nothing between bursts, and one that tells what it holds; also to the end of a finite stream."""
    assert found(lambda: NumbersAhead("a", 40, process_fn=make_function()), cyclic=cyclic) == []


def test_global_randomness_is_found_though_its_source_is_rare() -> None:
    """With the source, the function, the step and the field; and what to do."""
    (inexact,) = found(numbers(single_process_fn=noisy))
    assert (inexact.path, inexact.functions) == ("a", {"single_process_fn": "noisy"})
    message = str(inexact)
    assert message.startswith(
        "source 'a' (single_process_fn noisy): resumed after sample 1, sample 2 differs in 'noise'\n"
    )
    assert "record_rng(record)" in message
    assert "state_dict()" in message


def test_randomness_in_a_dataset_is_found_too() -> None:
    """It has no process function: its own code is named."""
    (inexact,) = found(lambda: Augmented("a", 40))
    assert "source 'a' (no process function; its own __getitem__)" in str(inexact)


def test_a_stream_function_that_holds_in_silence_is_found() -> None:
    """It gives the sum of all records, which the resumed one has not seen."""
    (inexact,) = found(numbers(process_fn=totals))
    assert "differs in 'total'" in inexact.what


def test_state_that_is_not_json_is_found() -> None:
    """Before anything is restarted."""
    (inexact,) = found(lambda: Numbers("a", 40, process_fn=Totals(state={1})))
    assert "is not JSON: Object of type set" in inexact.what


def test_state_that_cannot_be_loaded_is_found() -> None:
    """What it raised is the finding."""
    (inexact,) = found(lambda: Numbers("a", 40, process_fn=Totals(state="unloadable")))
    assert "it raised ValueError: cannot be loaded" in inexact.what


def test_a_yield_function_is_checked_where_its_sources_are_exact() -> None:
    """By the name of the mixture that has it."""
    (inexact,) = found(numbers(), customized_yield_fn=totals)
    assert str(inexact).startswith("the top (customized_yield_fn totals)")
    assert found(numbers(), customized_yield_fn=pairs) == []


def test_a_mixture_is_not_blamed_for_its_source() -> None:
    """Its yield function sees other samples because of the source."""
    assert [inexact.path for inexact in found(numbers(single_process_fn=noisy), customized_yield_fn=pairs)] == ["a"]


def test_an_inner_yield_function_is_named_by_its_path() -> None:
    """And the top has none of its own."""

    def make_inner() -> MergedDataset:
        inner = MergedDataset([Numbers("x", 40)], customized_yield_fn=totals)
        inner.name, inner.percent = "inner", 1
        return inner

    assert [inexact.path for inexact in found(make_inner)] == ["inner"]


def test_data_that_cannot_be_read_is_an_error_not_a_finding() -> None:
    """A function that fails at once has nothing to do with resume."""
    with pytest.raises(ValueError, match="no "):
        found(numbers(single_process_fn=failing))


def test_ranks_of_the_environment_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check is about functions, in one lane."""
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("RANK", "7")
    assert found(numbers()) == []

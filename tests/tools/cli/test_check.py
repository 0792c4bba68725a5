from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

Streamdata = Callable[..., Result]
WriteRecipe = Callable[..., Path]


def function(name: str) -> str:
    """A source's parameter."""
    return f", single_process_fn: {{target: tests.tools.view.functions.{name}}}"


def test_a_sound_recipe_passes(streamdata: Streamdata, write_recipe: WriteRecipe) -> None:
    """With one line that says so."""
    recipe = write_recipe()
    done = streamdata("check", recipe)
    assert (done.exit_code, done.stdout) == (0, f"{recipe}: 0 errors, 0 warnings, 0 not checked\n")


def test_all_errors_are_shown_at_once_with_their_places(streamdata: Streamdata, write_recipe: WriteRecipe) -> None:
    """A misspelt parameter, a target that is not there, and a missing variable."""
    recipe = write_recipe(
        "sede: 1\ncustomized_yield_fn: {target: tests.tools.view.functions.gone}\nstop: ${variables:x}"
    )
    done = streamdata("check", recipe, "--import", "tests")
    assert done.exit_code == 1
    assert [line for line in (3, 4, 5) if f"error: {recipe}:{line}:" in done.stdout] == [3, 4, 5]
    assert "did you mean 'seed'?" in done.stdout
    assert done.stdout.endswith(f"{recipe}: 3 errors, 0 warnings, 0 not checked\n")


def test_a_misspelt_attribute_is_an_error(streamdata: Streamdata, write_recipe: WriteRecipe) -> None:
    """It would do nothing."""
    recipe = write_recipe(attributes="max_badd: 1000")
    done = streamdata("check", recipe)
    assert done.exit_code == 1
    assert "unknown attribute 'max_badd', did you mean 'max_bad'?" in done.stdout


def test_braces_without_end_are_a_problem(streamdata: Streamdata, write_recipe: WriteRecipe) -> None:
    """Of files here, and of stores that are not asked."""
    for folder in ("", "http://127.0.0.1/"):
        recipe = write_recipe()
        params = f"params: {{path: '{folder}{{0..9999999}}.jsonl'}}\n"
        recipe.write_text(f"target: streamdata.JsonlIterableDataset\n{params}")
        done = streamdata("check", recipe)
        assert done.exit_code == 1
        assert "braces stand for too many paths" in done.stdout


def test_warnings_and_what_could_not_be_checked_are_shown_and_do_not_fail(
    streamdata: Streamdata, write_recipe: WriteRecipe
) -> None:
    """An unused variable; a function that another one makes."""
    recipe = write_recipe("customized_yield_fn: {target: functools.partial, params: {bad: 1}}")
    done = streamdata("check", recipe, "--var", "unused=1")
    assert f"warning: {recipe}:1:1: root: the variable 'unused' is not used" in done.stdout
    assert "1 warning," in done.stdout


def test_variables_given_fill_the_recipe(streamdata: Streamdata, write_recipe: WriteRecipe) -> None:
    """Without them it is an error."""
    recipe = write_recipe("seed: ${variables:seed}")
    assert streamdata("check", recipe).exit_code == 1
    assert streamdata("check", recipe, "--var", "seed=3").exit_code == 0


@pytest.mark.parametrize("name", ["seeded", "odd"])
def test_resume_passes_functions_that_give_the_same_again(
    streamdata: Streamdata, write_recipe: WriteRecipe, name: str
) -> None:
    """Randomness from record_rng included."""
    done = streamdata("check", write_recipe(params=function(name)), "--resume")
    assert done.exit_code == 0
    assert done.stdout.endswith("the same samples\n")


def test_resume_names_the_source_whose_function_is_not_exact(streamdata: Streamdata, write_recipe: WriteRecipe) -> None:
    """With advice; the exit code says it too."""
    done = streamdata("check", write_recipe(params=function("noisy")), "--resume")
    assert done.exit_code == 1
    assert (
        "error: source 'a' (single_process_fn noisy): resumed after sample 1, sample 2 differs in 'noise'"
        in done.stdout
    )
    assert "record_rng(record)" in done.stdout
    assert done.stdout.endswith("1 not the same\n")


def test_resume_builds_nothing_where_the_recipe_has_errors(streamdata: Streamdata, write_recipe: WriteRecipe) -> None:
    """They come first."""
    done = streamdata("check", write_recipe("sede: 1", params=function("noisy")), "--resume")
    assert done.exit_code == 1
    assert "noise" not in done.stdout


def test_resume_shows_an_error_of_building_as_its_message(streamdata: Streamdata, write_recipe: WriteRecipe) -> None:
    """Such as shards that are not there, where the check was told not to look for them."""
    recipe = write_recipe()
    (recipe.parent / "a.jsonl").unlink()
    done = streamdata("check", recipe, "--resume", "--no-files")
    assert done.exit_code == 1
    assert done.stderr.startswith(f"error: {recipe}:5:5: params.datasets[0] (streamdata.JsonlIterableDataset)")
    assert "Traceback" not in done.output


def test_data_that_are_sound_pass(streamdata: Streamdata, write_recipe: WriteRecipe) -> None:
    """All of them are read."""
    done = streamdata("check", write_recipe(params=function("same")), "--data", "-j", 1)
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "data: 80 records of 2 sources read: nothing is wrong")


@pytest.mark.parametrize("jobs", [1, 2])
def test_data_lists_what_is_wrong_by_kind_and_place(
    streamdata: Streamdata, write_recipe: WriteRecipe, tmp_path: Path, jobs: int
) -> None:
    """In the order of the recipe, in whichever process it was read."""
    recipe = write_recipe()
    for name in "ab":
        with (tmp_path / f"{name}.jsonl").open("a") as file:
            file.write('{"value": 1, "value": 2}\n{\n')
    done = streamdata("check", recipe, "--data", "-j", jobs)
    assert done.exit_code == 1
    lines = [line for line in done.stdout.splitlines() if line.startswith("error: ")]
    assert [line.split(": ")[1:3] for line in lines] == [
        ["damaged", "a"], ["key given twice", "a"], ["damaged", "b"], ["key given twice", "b"],
    ]  # fmt: skip
    assert done.stdout.splitlines()[-1] == "data: 82 records of 2 sources read: damaged: 2, key given twice: 2"


def test_data_names_the_first_sample_without_its_cost(streamdata: Streamdata, write_recipe: WriteRecipe) -> None:
    """Once for each shard; nothing is said of a field that is there."""
    done = streamdata("check", write_recipe("cost: num_tokens"), "--data", "-j", 1)
    lines = [line for line in done.stdout.splitlines() if line.startswith("error: ")]
    assert [line.split(": ")[1:3] for line in lines] == [["cost", "a"], ["cost", "b"]]
    assert "expected the field 'num_tokens' in each sample" in lines[0]
    assert streamdata("check", write_recipe("cost: value"), "--data", "-j", 1).exit_code == 0


@pytest.mark.parametrize("jobs", [1, 2])
def test_data_names_what_a_process_died_at_and_goes_on(
    streamdata: Streamdata, write_recipe: WriteRecipe, jobs: int
) -> None:
    """Source, shard and record; what is found elsewhere is listed. One process is another one, too."""
    recipe = write_recipe(params=function("dying"))
    with (recipe.parent / "b.jsonl").open("a") as file:
        file.write("{\n")
    done = streamdata("check", recipe, "--data", "-j", jobs)
    lines = [line for line in done.stdout.splitlines() if line.startswith("error: ")]
    assert done.exit_code == 1
    assert lines[0].startswith(f"error: process died: a: {recipe.parent}/a.jsonl: expected the process that reads it")
    assert f"it died with exit code 9 at {recipe.parent}/a.jsonl, key '7'; the records after" in lines[0]
    assert lines[1].startswith(f"error: damaged: b: {recipe.parent}/b.jsonl:41:")
    assert done.stdout.endswith("data: 48 records of 2 sources read: damaged: 1, process died: 1\n")


def test_data_keeps_what_was_found_before_a_process_died(streamdata: Streamdata, write_recipe: WriteRecipe) -> None:
    """The function's faults, a line that is damaged, and how many records were read, all of them once."""
    recipe = write_recipe(params=function("failing_then_dying"))
    path = recipe.parent / "a.jsonl"
    path.write_text("{\n" * 200 + path.read_text())
    done = streamdata("check", recipe, "--data", "-j", 2)
    lines = [line for line in done.stdout.splitlines() if line.startswith("error: ")]
    assert [line.split(":")[1] for line in lines] == [" damaged"] * 100 + [" function"] * 2 + [" process died"]
    assert "key '205': single_process_fn raised ValueError: no 5" in lines[-2]
    counts = "damaged: 200, function: 2, process died: 1"
    assert done.stdout.endswith(f"data: 48 records of 2 sources read: {counts}\n")


def test_data_shows_a_fault_as_one_line(streamdata: Streamdata, write_recipe: WriteRecipe) -> None:
    """What is wrong and what to do; a function's message forges none."""
    recipe = write_recipe(params=function("wordy"))
    (recipe.parent / "b.jsonl").write_text("7\n")
    lines = streamdata("check", recipe, "--data", "-j", 1).stdout.splitlines()
    assert len([line for line in lines if line.startswith("error: ")]) == len(lines) - 3 == 41
    assert max(map(len, lines)) < 400 + len(str(recipe))


def test_jobs_are_of_data_alone(streamdata: Streamdata, write_recipe: WriteRecipe) -> None:
    """Nothing else has any."""
    assert streamdata("check", write_recipe(), "-j", 2).exit_code == 2

import multiprocessing
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from typer.testing import Result

from streamdata import MergedDataset, RecipeError
from streamdata.io.cache.cached import _caches
from streamdata.run.lane_link import Traffic, _counts
from streamdata.tools.cli.main import app
from streamdata.tools.cli.options import GivenRecipe
from streamdata.tools.view.totals import Delivery
from tests.io.servers import http_server
from tests.ranks import fork_workers
from tests.shard_files import jpeg
from tests.streams import Numbers
from tests.text.chat_templates import chat_tokenizer

Streamdata = Callable[..., Result]
WriteRecipe = Callable[..., Path]


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal on which nothing is shortened."""
    monkeypatch.setenv("COLUMNS", "200")


def row(output: str, name: str) -> list[str]:
    """The cells of the summary's line of a source."""
    return next(line.split() for line in reversed(output.splitlines()) if line.startswith(f"{name} "))


def test_a_run_shows_the_tree_and_ends_after_its_batches(streamdata: Streamdata, write_recipe: WriteRecipe) -> None:
    """With wanted and achieved shares, and a number for each source."""
    done = streamdata("run", write_recipe(), "--batches", "5", "--batch", "8")
    assert (done.exit_code, done.stderr) == (0, "")
    assert re.search(r"├─ a +3 +75 % +75 % +40 +40 +JsonlIterableDataset, 1 shard, shuffled", done.stdout)
    assert "40 samples, 320 B in " in done.stdout
    assert row(done.stdout, "a") == ["a", "75", "%", "75", "%", "30", "0", "0"]
    assert row(done.stdout, "b") == ["b", "25", "%", "25", "%", "10", "0", "0"]


def test_a_finite_stream_runs_to_its_end(streamdata: Streamdata, write_recipe: WriteRecipe) -> None:
    """Without a number of batches; both sources have 40 records."""
    done = streamdata("run", write_recipe("cyclic: false\nstop: all_exhausted"))
    assert done.exit_code == 0
    assert "80 samples" in done.stdout


def test_workers_deliver_the_same_counts(streamdata: Streamdata, write_recipe: WriteRecipe) -> None:
    """What they read ahead counts nothing."""
    done = streamdata("run", write_recipe(), "--batches", "10", "--batch", "4", "--workers", "2")
    assert done.exit_code == 0
    assert row(done.stdout, "a")[5] == "30"


def test_drops_and_forgiven_failures_are_in_the_summary(streamdata: Streamdata, write_recipe: WriteRecipe) -> None:
    """Every other record is dropped here, every fifth is bad there."""
    recipe = write_recipe("cyclic: false", params=", single_process_fn: {target: tests.tools.view.functions.odd}")
    assert 15 <= int(row(streamdata("run", recipe).stdout, "a")[6]) <= 20
    failing = write_recipe(
        "cyclic: false", ", single_process_fn: {target: tests.tools.view.functions.failing}", "max_bad: 100"
    )
    assert 5 <= int(row(streamdata("run", failing).stdout, "a")[7]) <= 8


def test_an_unused_variable_is_a_warning_in_one_line(streamdata: Streamdata, write_recipe: WriteRecipe) -> None:
    """On stderr, and the run goes on."""
    recipe = write_recipe()
    done = streamdata("run", recipe, "--batches", "1", "--var", "x=1")
    assert done.exit_code == 0
    assert done.stderr == f"warning: {recipe}: the variables 'x' are not used by the recipe\n"


def test_an_error_of_the_recipe_is_its_message(streamdata: Streamdata, write_recipe: WriteRecipe) -> None:
    """With its place, without a traceback."""
    recipe = write_recipe("sede: 1")
    done = streamdata("run", recipe)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: {recipe}:3:3: params.sede (streamdata.MergedDataset): ")
    assert "Traceback" not in done.stderr


def test_damaged_data_ends_the_run_with_its_message_and_the_summary(
    streamdata: Streamdata, write_recipe: WriteRecipe
) -> None:
    """What was delivered until then is shown too."""
    recipe = write_recipe("cyclic: false\nshuffle_streaming_subsets: false")
    (recipe.parent / "a.jsonl").write_text('{"value": 1}\n' * 300 + '{"value": \n')
    (recipe.parent / "b.jsonl").write_text('{"value": 1}\n' * 300)
    done = streamdata("run", recipe, "--batch", "1")
    assert done.exit_code == 1
    assert f"{recipe.parent}/a.jsonl:301:" in done.stderr
    assert int(row(done.stdout, "b")[5]) > 0


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_a_function_is_one_message(streamdata: Streamdata, write_recipe: WriteRecipe, workers: int) -> None:
    """With where it was raised; all the way there only where that is asked for."""
    recipe = write_recipe(params=", single_process_fn: {target: tests.tools.view.functions.failing}")
    done = streamdata("run", recipe, "--workers", workers)
    assert done.exit_code == 1
    first, *notes, place, last = done.stderr.splitlines()
    assert re.fullmatch(r"error: ValueError: no \d+", first)
    assert any("source 'a': single_process_fn failed at" in note for note in notes)
    assert re.fullmatch(r"  Raised at .*tests/tools/view/functions\.py:\d+, in failing\.", place)
    assert last == "  --traceback shows how it came there."
    whole = streamdata("run", recipe, "--workers", workers, "--traceback")
    assert (whole.exit_code, type(whole.exception), whole.stderr) == (1, ValueError, "")


def test_a_wrong_field_says_which_there_are(streamdata: Streamdata, write_recipe: WriteRecipe, tmp_path: Path) -> None:
    """Not streamdata's own."""
    process = (
        "{target: streamdata.TextJsonlProcessFnBuilder, params: {max_sequence_length: 8, tokenizer_name: TOKENIZER}}"
    )
    chat_tokenizer(tmp_path / "draft").save_pretrained(tmp_path / "saved")
    recipe = write_recipe(params=f", process_fn: {process.replace('TOKENIZER', str(tmp_path / 'saved'))}")
    done = streamdata("run", recipe, "--batches", 9)
    assert "the record has no field 'text'; it has value\n" in done.stderr
    assert len(done.stderr.splitlines()) < 9


def test_the_live_line_names_the_heaviest_sources_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The summary names all."""
    dataset = MergedDataset([Numbers(f"s{number}", 5, number + 1) for number in range(9)])
    monkeypatch.setattr(dataset, "traffic", Traffic)  # not that of other tests of this process
    delivery = Delivery(dataset)
    delivery.add([next(iter(dataset))])
    assert re.search(r"^\d+\.\d s  1 samples  0 samples/s, 0 B/s  s8 .* %, s7 .*s3 \d+ %, 3 more$", delivery.line())
    assert len(delivery.summary().splitlines()) == 11


def test_what_was_asked_of_stores_is_in_the_summary(
    streamdata: Streamdata, write_recipe: WriteRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of workers too; the live line says how much they wait. Of local files neither says anything."""
    monkeypatch.setenv("STREAMDATA_CACHE", str(tmp_path / "indexes"))
    # Of this test alone: what other tests of this process have read is not among it.
    monkeypatch.setattr(_counts, "made", None)
    monkeypatch.setattr(_caches, "made", None)
    recipe = write_recipe("cyclic: false\nstop: all_exhausted")
    local = streamdata("run", recipe, "--workers", "1")
    with http_server({f"{name}.jsonl": (tmp_path / f"{name}.jsonl").read_bytes() for name in "ab"}) as server:
        recipe.write_text(recipe.read_text().replace(str(tmp_path), server.url))
        done = streamdata("run", recipe, "--workers", "1")
    found = re.search(
        r"^from stores: \S+ [kM]?B by (\d+) requests, \d+ of them repeated; 0 B of the cache by 0 hits; "
        r"readers waited \d+% of their time$",
        done.stdout,
        re.MULTILINE,
    )
    assert found is not None, done.stdout
    # What a worker asked for after its last batch comes with none.
    assert len(server.log) // 2 < int(found[1]) <= len(server.log)
    assert "from stores" not in local.stdout
    dataset = MergedDataset([Numbers("a", 5)])
    monkeypatch.setattr(dataset, "traffic", lambda: Traffic(1, waited_s=2, read_s=5))
    assert "  40% waiting for stores  a " in Delivery(dataset).line()


def test_nothing_delivered_is_said() -> None:
    """Instead of a table of zeros."""
    assert Delivery(MergedDataset([Numbers("a", 5)])).summary() == "no batch was delivered"


def in_a_group(folder: Path, arguments: list[str]) -> None:
    """The command in a process group of its own, its output in files."""
    os.setsid()
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT), number)
    fork_workers()
    sys.argv = ["streamdata", *arguments]
    app()


@pytest.fixture
def endless(write_recipe: WriteRecipe, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BaseProcess]:
    """On an endless recipe, from a process that has imported torch."""
    arguments = ["run", str(write_recipe()), "--workers", str(request.param)]
    process = multiprocessing.get_context("forkserver").Process(target=in_a_group, args=(tmp_path, arguments))
    process.start()
    yield process
    process.kill()
    process.join()


def group_ends(group: int) -> bool:
    """Whether no process of it is left; workers end a moment after the command."""
    for _ in range(600):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize("endless", [2], indirect=True)
def test_ctrl_c_ends_an_endless_run_cleanly(endless: BaseProcess, tmp_path: Path) -> None:
    """Plain lines until then, the summary after, exit code 130, a word in place of a traceback, no process left."""
    output = tmp_path / "stdout"
    while not output.exists() or "samples/s" not in output.read_text():
        assert endless.is_alive()
        time.sleep(0.02)
    os.killpg(endless.pid, signal.SIGINT)
    endless.join(60)
    assert (endless.exitcode, (tmp_path / "stderr").read_text()) == (130, "interrupted\n")
    lines, rest = output.read_text().split("samples/s", 1)
    assert lines.splitlines()[-1][0].isdigit()
    assert row(rest, "a")[1:3] == ["75", "%"]
    assert group_ends(endless.pid)


def test_a_mixture_is_built_with_its_variables(write_recipe: WriteRecipe) -> None:
    """As `instantiate_from_yaml` builds it."""
    dataset = GivenRecipe(write_recipe("seed: ${variables:seed}"), {"seed": 8}, None, []).build()
    assert isinstance(dataset, MergedDataset)
    assert dataset.seed == 8


def test_a_source_may_be_the_root(tmp_path: Path, streamdata: Streamdata) -> None:
    """Of shards, or map-style; it is read to its end."""
    (tmp_path / "cat").mkdir()
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n' * 5)
    for number in range(5):
        (tmp_path / "cat" / f"{number}.jpg").write_bytes(jpeg(number))
    recipe = tmp_path / "recipe.yaml"
    for target in ("JsonlIterableDataset", "ImageFolderDataset"):
        recipe.write_text(f"target: streamdata.{target}\nparams: {{path: {tmp_path}}}\n")
        done = streamdata("run", recipe)
        assert done.exit_code == 0, done.output
        assert f"└─ {target}" in done.stdout
        assert "5 samples" in done.stdout


def test_a_root_that_is_no_mixture_is_refused(tmp_path: Path, streamdata: Streamdata) -> None:
    """It says what it is, and what is wanted."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("a: 1\n")
    with pytest.raises(RecipeError, match=r"root: expected a MergedDataset or a source, got dict\n"):
        GivenRecipe(recipe, {}, None, []).build()
    assert streamdata("run", recipe).exit_code == 1

"""`streamdata plan`: exit codes, one JSON document, text that a person reads."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

Streamdata = Callable[..., Result]
KEYS = {"name", "records", "tokens", "share", "epochs", "first_repeat", "bytes", "advice"}


def test_json_is_one_document_with_the_names_that_are_promised(
    streamdata: Streamdata, write_recipe: Callable[..., Path]
) -> None:
    """Of each source, and the first draws."""
    done = streamdata("plan", write_recipe(), "--samples", 400, "--draws", 20, "--json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert [source["name"] for source in document["sources"]] == ["a", "b"]
    assert all(source.keys() >= KEYS for source in document["sources"])
    a = document["sources"][0]
    assert (a["records"], a["share"], a["epochs"], a["tokens"]) == (40, 0.75, 7.5, None)
    assert len(document["draws"]) == 20
    assert document["draws"][0].keys() >= {"source", "url", "clock", "block"}


def test_text_names_what_hurts(streamdata: Streamdata, write_recipe: Callable[..., Path]) -> None:
    """And what to do about it; lanes that lack blocks; the draws only if asked for."""
    done = streamdata("plan", write_recipe(params=", block_size: 20"), "--samples", 4000, "--ranks", 4)
    assert done.exit_code == 0
    advice = "a is read 75 times: to stay within 4 epochs, lower its weight to 0.042 or add 710 records; 2 blocks for 4"
    assert advice in " ".join(done.stdout.split())
    assert "the first draws" not in done.stdout
    assert "the first draws" in streamdata("plan", write_recipe(), "--samples", 40, "--draws", 5).stdout


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--samples", 1, "--tokens", 1],
        ["--samples", 0],
        ["--samples", 5, "--ranks", 0],
        *[["--samples", wrong] for wrong in ("x", "1.5", "1e-3", "1e400", "nan", 2**53)],
    ],
)
def test_a_wrong_call_is_usage(
    streamdata: Streamdata, write_recipe: Callable[..., Path], options: list[object]
) -> None:
    """Exit code 2."""
    assert streamdata("plan", write_recipe(), *options).exit_code == 2


def test_a_large_number_may_be_written_short(streamdata: Streamdata, write_recipe: Callable[..., Path]) -> None:
    """With an exponent, as in recipes."""
    done = [streamdata("plan", write_recipe(), "--samples", number, "--json") for number in ("4e2", 400)]
    short, long = (json.loads(one.stdout) for one in done)
    assert (short["samples"], short["sources"]) == (long["samples"], long["sources"])
    assert short["samples"] == 400


def test_what_is_wrong_with_data_is_one_message(streamdata: Streamdata, write_recipe: Callable[..., Path]) -> None:
    """An empty source; tokens that nobody knows. Nothing on stdout, also with --json."""
    recipe = write_recipe()
    for options in (["--tokens", 5, "--read", 0], ["--tokens", 5]):
        done = streamdata("plan", recipe, *options, "--json")
        assert (done.exit_code, done.stdout) == (1, "")
    (recipe.parent / "a.jsonl").write_text("")
    done = streamdata("plan", recipe, "--samples", 5)
    assert done.exit_code == 1
    assert "expected at least one record" in done.output


def test_sampling_none_reads_nothing(streamdata: Streamdata, write_recipe: Callable[..., Path]) -> None:
    """Of records that cannot be parsed, only their lines are counted."""
    recipe = write_recipe()
    (recipe.parent / "a.jsonl").write_text("broken\n" * 10)
    assert streamdata("plan", recipe, "--samples", 50, "--read", 0, "--draws", 5).exit_code == 0
    assert streamdata("plan", recipe, "--samples", 50).exit_code == 1


def test_names_cannot_steer_a_terminal(streamdata: Streamdata, tmp_path: Path) -> None:
    """Control characters are shown as such; JSON escapes them."""
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n' * 9)
    recipe = tmp_path / "odd.yaml"
    params = f'params: {{path: "{tmp_path}/a.jsonl"}}'
    source = f'{{target: streamdata.JsonlIterableDataset, {params}, percent: 1, name: "a\\e[31mb"}}'
    recipe.write_text(f"target: streamdata.MergedDataset\nparams: {{datasets: [{source}]}}\n")
    for options in ([], ["--json"]):
        done = streamdata("plan", recipe, "--samples", 99, "--draws", 3, *options)
        assert done.exit_code == 0, done.output
        assert "\x1b" not in done.output
        assert "[31mb" in done.output


def test_what_hurts_is_in_colour(
    streamdata: Streamdata, write_recipe: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """But where NO_COLOR is set, and where nobody asked for it."""
    command = ("plan", write_recipe(), "--samples", 4000)
    assert "\x1b" not in streamdata(*command).stdout
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b[31m" in streamdata(*command).stdout
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[31m" not in streamdata(*command).stdout


@pytest.mark.parametrize(("columns", "samples"), [(80, 4_000_000), (120, 4_000)])
def test_it_fits_the_terminal(
    streamdata: Streamdata,
    write_recipe: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    columns: int,
    samples: int,
) -> None:
    """Paths of shards too, which are shortened in their middle."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("streamdata.tools.plan.course._MAX_DRAWS", 5000)  # the text is as long as after all of them
    run = ("--samples", samples, "--ranks", 40, "--workers", 4)
    done = streamdata("plan", write_recipe(params=", block_size: 20"), *run, "--draws", 9)
    assert done.exit_code == 0, done.output
    assert max(map(len, done.stdout.splitlines())) <= columns
    assert any("…" in line and ", record " in line for line in done.stdout.splitlines()) or columns > 80


def test_titles_are_whole(streamdata: Streamdata, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At 80 columns, where long names are shortened."""
    monkeypatch.setenv("COLUMNS", "80")
    text = "\n".join(f'{{"text": "{number}"}}' for number in range(9))
    sources = []
    for name, percent in (("a" * 60, "[[0, 0.1], [10000, 0.9]]"), ("b", "0.5")):
        (tmp_path / f"{name}.jsonl").write_text(text)
        where = f"{{target: streamdata.JsonlIterableDataset, params: {{path: {tmp_path / name}.jsonl}}"
        sources.append(f"    - {where}, name: {name}, percent: {percent}}}")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("\n".join(["target: streamdata.MergedDataset", "params:", "  datasets:", *sources]) + "\n")
    done = streamdata("plan", recipe, "--samples", 20000)
    assert done.exit_code == 0, done.output
    assert "without workers" in done.stdout
    titles = done.stdout.split("\n\n")[1].splitlines()[0]
    assert titles.split() == ["source", "records", "share", "samples", "epochs", "repeats", "at", "bytes"]
    assert max(map(len, done.stdout.splitlines())) <= 80


RECIPE = """
target: streamdata.MergedDataset
params:
  datasets:
    - {target: streamdata.JsonlIterableDataset, name: a, percent: 1, params: {path: FOLDER/a.jsonl}}
  customized_yield_fn:
    target: streamdata.PackTokens
    params: {max_tokens: 200, rows: 16, balance: {target: streamdata.Cost, params: {linear: 20, quadratic: 1}}}
"""


def test_balance_is_told_of_the_first_steps(
    tmp_path: Path, streamdata: Streamdata, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As text and as JSON; the length of the run need not be given."""
    monkeypatch.setattr("streamdata.tools.plan.stragglers.NUM_STEPS", 200)
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"input_ids": [1] * n}) + "\n" for n in range(1, 180)))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE.replace("FOLDER", str(tmp_path)))
    document = json.loads(streamdata("plan", recipe, "--balance", "--ranks", 2, "--json").stdout)
    assert document["samples"] == 400
    found = document["balance"]
    assert 1 < found["loss_with"] < found["loss_without"]
    assert 0.85 < found["fill"] < 1
    text = " ".join(streamdata("plan", recipe, "--balance", "--ranks", 2).stdout.split())
    assert f"slowest rank of a step has {found['loss_with']:.3f} times the mean cost, without balance" in text
    assert json.loads(streamdata("plan", recipe, "--samples", 9, "--json").stdout)["balance"] is None

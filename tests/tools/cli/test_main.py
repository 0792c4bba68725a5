import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import Result

from streamdata.errors import ShardError
from streamdata.run import MAX_RANKS
from streamdata.tools.cli import options

Streamdata = Callable[..., Result]
HEAVY = ("torch", "transformers", "numpy", "h5py", "pyarrow", "PIL", "webdataset")
COMMANDS = ([], ["run"], ["check"], ["prepare"], ["prepare", "merge"], ["show"], ["verify"], ["init"], ["schema"])


def words(text: str) -> str:
    """Without the boxes, colours and line breaks that depend on where it is shown."""
    return " ".join(re.sub(r"\x1b\[[\d;]*m|[│╭╮╰╯─]", "", text).split())


def test_help_imports_nothing_heavy() -> None:
    """So that it is there at once."""
    code = (
        "import sys; from streamdata.tools.cli.main import app\n"
        f"for arguments in {[*([*command, '--help'] for command in COMMANDS), ['--version']]!r}:\n"
        "    try: app(arguments)\n"
        "    except SystemExit as ended: assert not ended.code, arguments\n"
        f"    heavy = set({HEAVY!r}) & set(sys.modules)\n"
        "    assert not heavy, (arguments, heavy)\n"
        "    print('after', *arguments)\n"
    )
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    shown = re.split(r"^after .*\n", done.stdout, flags=re.MULTILINE)
    assert [bool(text.strip()) for text in shown] == [True] * (len(COMMANDS) + 1) + [False]


def test_a_check_imports_no_target_of_others(write_recipe: Callable[..., Path], python: Callable) -> None:
    """Those of packages that are named are imported in another process."""
    recipe = write_recipe(params=", single_process_fn: {target: tests.tools.view.functions.same}")
    code = (
        "import sys; from streamdata.tools.cli.main import app\n"
        "try: app(sys.argv[1:])\n"
        "finally: assert not {'transformers', 'pyarrow', 'tests.tools.view.functions'} & set(sys.modules)"
    )
    done = python("-c", code, "check", recipe, "--import", "tests", warn="error")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("0 not checked\n")


def test_the_version_is_that_of_the_distribution(streamdata: Streamdata) -> None:
    """As installed."""
    assert streamdata("--version").stdout.split() == ["streamdata", version("torch-streamdata")]


def test_help_names_every_option(streamdata: Streamdata) -> None:
    """Of both commands."""
    run, check = (words(streamdata(command, "--help").stdout) for command in ("run", "check"))
    assert all(option in run for option in ("--var", "--batches", "--batch", "--workers", "--allow"))
    assert all(option in check for option in ("--var", "--allow", "--resume"))


def test_help_says_what_else_would_be_asked(streamdata: Streamdata) -> None:
    """Why `plan` advises four epochs; how `index`, which reads no recipe, finds a store."""
    told = words(streamdata("plan", "--help").stdout)
    assert "within 4 epochs: up to there repeated text is nearly as good as new" in told
    assert "arXiv 2305.16264" in told
    assert "outside AWS set AWS_ENDPOINT_URL, or give --endpoint" in words(streamdata("index", "--help").stdout)


@pytest.mark.parametrize("command", [*COMMANDS, ["index"], ["state"]], ids=" ".join)
def test_a_flag_is_shown_as_one(streamdata: Streamdata, command: list[str]) -> None:
    """It takes no value."""
    shown = words(streamdata(*command, "--help").stdout)
    assert "--help" in shown
    assert "bool" not in shown


def test_the_package_runs_as_a_module() -> None:
    """Where the command is not on the path."""
    command = [sys.executable, "-W", "error", "-m", "streamdata"]
    shown = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
    assert shown.split() == ["streamdata", version("torch-streamdata")]
    usage = subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=60, check=True).stdout
    assert "python -m streamdata" in words(usage)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--var", "x"],
        ["--var", "=1"],
        ["--var", "x=1", "--var", "x=2"],
        ["--var", "x=[1"],
        ["--var", "x={a: 1, a: 2}"],
        ["--allow", "not a name"],
        ["--nonsense"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("command", ["run", "check"])
def test_usage_errors_have_their_own_exit_code(
    streamdata: Streamdata, write_recipe: Callable[..., Path], command: str, arguments: list[str]
) -> None:
    """2, as everywhere; nothing runs."""
    done = streamdata(command, write_recipe(), *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert arguments[0] in words(done.stderr)


@pytest.mark.parametrize("command", ["run", "check"])
def test_a_missing_recipe_is_a_usage_error(streamdata: Streamdata, tmp_path: Path, command: str) -> None:
    """It names the file."""
    done = streamdata(command, tmp_path / "gone.yaml")
    assert done.exit_code == 2
    assert "does not exist" in words(done.stderr)


@pytest.mark.parametrize(
    ("text", "value"),
    [("224", 224), ("1e-3", 1e-3), ("true", True), ("abc", "abc"), ("'7'", "7"), ("[1, a]", [1, "a"]), ("a=b", "a=b")],
)
def test_variables_are_typed_as_in_yaml(
    streamdata: Streamdata, write_recipe: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, text: str, value: object
) -> None:
    """The value is all after the first equals sign."""
    seen = []
    monkeypatch.setattr(
        "streamdata.tools.cli.recipes.check_problems",
        lambda given, *_, **__: seen.append((given.variables, given.allow)) or True,
    )
    assert streamdata("check", write_recipe(), "--var", f"x={text}").exit_code == 0
    assert seen == [({"x": value}, None)]


def test_allowed_packages_reach_the_recipe(streamdata: Streamdata, write_recipe: Callable[..., Path]) -> None:
    """They narrow what may be built, in both commands."""
    recipe = write_recipe(params=", single_process_fn: {target: tests.tools.view.functions.same}")
    for command, *more in (["check"], ["run", "--batches", "1"]):
        assert streamdata(command, recipe, *more, "--allow", "other", "--allow", "another").exit_code == 1
        assert streamdata(command, recipe, *more, "--allow", "other", "--allow", "tests").exit_code == 0


def test_errors_of_ours_are_printed_with_their_notes_and_no_traceback(
    streamdata: Streamdata, write_recipe: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their message says all."""

    def fail(*_: object, **__: object) -> None:
        error = ShardError("shard 'x': damaged\n  Write it anew.")
        error.add_note("source 'a'")
        raise error

    monkeypatch.setattr("streamdata.tools.cli.options.GivenRecipe.build", fail)
    done = streamdata("run", write_recipe())
    assert (done.exit_code, done.stderr) == (1, "error: shard 'x': damaged\n  Write it anew.\nsource 'a'\n")


def test_interrupting_while_it_builds_ends_with_130(
    streamdata: Streamdata, write_recipe: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As shells expect."""

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("streamdata.tools.cli.options.GivenRecipe.build", interrupt)
    assert streamdata("run", write_recipe()).exit_code == 130


def test_targets_may_lie_where_the_command_is_run(
    write_recipe: Callable[..., Path], tmp_path: Path, python: Callable
) -> None:
    """In the working directory, as a script's neighbours."""
    (tmp_path / "my_functions.py").write_text("def same(record):\n    return record\n")
    recipe = write_recipe(params=", single_process_fn: {target: my_functions.same}")
    command = os.path.join(os.path.dirname(sys.executable), "streamdata")
    done = python(command, "run", recipe, "--batches", 1, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_bound_of_ranks_is_that_of_states() -> None:
    """The command line has its own, so that `--help` imports no NumPy."""
    assert options.MAX_RANKS == MAX_RANKS


@pytest.mark.parametrize(
    "arguments",
    [
        *(["show", "--ranks"], ["show", "--rank"], ["show", "--step"], ["show", "--batch"], ["show", "-n"]),
        *(["plan", "--ranks"], ["plan", "--samples"], ["plan", "--tokens"], ["plan", "--batch"], ["plan", "--read"]),
        *(["plan", "--draws"], ["run", "--batches"], ["run", "--batch"], ["profile", "--batch"]),
        *(["index", "--line-bytes"], ["index", "--member-bytes"], ["trace", "--step"], ["trace", "--batch"]),
        ["prepare", "--dry-run"],
    ],
    ids=" ".join,
)
def test_a_number_beyond_all_that_can_be_counted_is_a_bad_option(arguments: list[str], streamdata: Streamdata) -> None:
    """Said at once, before anything is read."""
    command, option = arguments
    done = streamdata(command, __file__, *([__file__] if command == "trace" else []), option, 10**23)
    assert done.exit_code == 2
    assert f"Invalid value for '{option}'" in words(done.stderr)


def test_a_reader_that_has_gone_is_no_error(tmp_path: Path, python: Callable) -> None:
    """As of `… | head -1`."""
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    source = "{target: streamdata.JsonlIterableDataset, params: {path: a.jsonl}, name: a, percent: 1}"
    (tmp_path / "a.yaml").write_text(f"target: streamdata.MergedDataset\nparams: {{datasets: [{source}]}}\n")
    code = (
        "import os, runpy; reader, writer = os.pipe(); os.close(reader); os.dup2(writer, 1)\n"
        "runpy.run_module('streamdata', run_name='__main__')"
    )
    done = python("-c", code, "check", "a.yaml", cwd=tmp_path)
    assert done.stderr == ""

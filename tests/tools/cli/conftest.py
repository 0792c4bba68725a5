"""Recipes over tiny JSONL shards, and the command in this process."""

import textwrap
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from streamdata.tools.cli.main import app

SOURCE = """
  - target: streamdata.JsonlIterableDataset
    params: {{path: "{folder}/{name}.jsonl"{params}}}
    name: {name}
    percent: {percent}
    {attributes}
"""


@pytest.fixture
def write_recipe(tmp_path: Path) -> Callable[..., Path]:
    """Writes `recipe.yaml` over two sources of 40 rows, `a` of weight 3 and `b` of weight 1."""

    def write(options: str = "seed: 1", params: str = "", attributes: str = "") -> Path:
        for name in "ab":
            (tmp_path / f"{name}.jsonl").write_text("".join(f'{{"value": {row}}}\n' for row in range(40)))
        first = SOURCE.format(folder=tmp_path, name="a", percent=3, params=params, attributes=attributes)
        second = SOURCE.format(folder=tmp_path, name="b", percent=1, params="", attributes="")
        recipe = tmp_path / "recipe.yaml"
        text = (
            f"target: streamdata.MergedDataset\nparams:\n{textwrap.indent(options, '  ')}\n  datasets:{first}{second}"
        )
        recipe.write_text(text)
        return recipe

    return write


@pytest.fixture
def streamdata() -> Callable[..., Result]:
    """Runs the command in this process."""

    def run(*arguments: object) -> Result:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        # In a cycle with its frames a loader would stay, and for each of its workers a collection waits five seconds.
        error = result.exception
        while error is not None:
            traceback.clear_frames(error.__traceback__)
            error = error.__cause__ or error.__context__
        return result

    return run

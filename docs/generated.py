"""What the reference takes from the package itself: names, recipe keys and the help of each command.

A page has a line `<!-- generated: NAME -->`, which MkDocs replaces by what the function `NAME` returns, here or among
the drawings.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import yaml

import streamdata

sys.path.insert(0, str(Path(__file__).parent))  # MkDocs loads a hook by its path, without what lies beside it
from drawings import DRAWINGS

_SOURCE = {"target": "streamdata.SeqDataset", "params": {"load_path": "tokens", "window_size": 2048}}
_VALUES = {
    "config": {"max_prompt_length": 1024},
    "data_files": "rows.parquet",
    "datasets": [_SOURCE | {"name": "web", "percent": 1}],
    "fields": "jpg",
    "hidden": 4096,
    "img_size": 256,
    "jsonl_path": "images.jsonl",
    "layers": 32,
    "linear": 4.0e10,
    "load_path": "tokens",
    "max_sequence_length": 2048,
    "max_text_len": 64,
    "max_tokens": 8192,
    "max_tokens_per_batch": 8192,
    "num_params": 6.7e9,
    "path": "data",
    "paths": "0.3 web 0.7 code",
    "quadratic": 8.0e5,
    "size": 256,
    "storage_type": "bin",
    "tokenizer": "my-tokenizer",
    "tokenizer_name": "my-tokenizer",
    "train_type": "seq",
    "weights": [1],
    "window_size": 2048,
}
"""Of keys that a target needs, in its example."""
_USUAL = ("linear", "load_path", "quadratic", "window_size")
"""Keys that have a default, and that examples have all the same."""
_MARK = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace each mark of a page (a hook of MkDocs)."""
    return _MARK.sub(lambda mark: GENERATED[mark[1]](), markdown)


def on_post_page(output: str, **_: Any) -> str:
    """Name the search for those who hear it, and let wide code be scrolled by keys (a hook of MkDocs)."""
    output = output.replace('class="md-search"', 'class="md-search" aria-label="Search"')
    return output.replace("<pre>", '<pre tabindex="0">')


def front() -> str:
    """README.md, whose links are seen from the pages; what is not one of these is named without a link."""
    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8").partition("\n")[2]
    return re.sub(r"\[([^\]]+)\]\((?!docs/)[^)]+\)", r"\1", text).replace("](docs/", "](")


def groups() -> Iterator[tuple[str, list[str]]]:
    """The groups of public names, as comments in `streamdata/__init__.py` name them."""
    source = Path(inspect.getfile(streamdata)).read_text(encoding="utf-8")
    table = source[source.index("_MODULES = {") :]
    table = table[: table.index("\n}")]
    for part in re.split(r"\n    # ", table)[1:]:
        title, _, lines = part.partition("\n")
        yield title, re.findall(r'^    "(\w+)":', lines, re.MULTILINE)


def api() -> str:
    """Every public name with signature and docstring, by its group."""
    lines = []
    for title, names in groups():
        lines += [f"## {title[0].upper()}{title[1:]}", ""]
        lines += [f"::: streamdata.{name}\n" for name in names]
    return "\n".join(lines)


def commands() -> str:
    """The help of each command, as a terminal of 80 columns shows it."""
    from typer.main import get_command
    from typer.testing import CliRunner

    from streamdata.tools.cli.main import app

    names = list(get_command(app).commands)  # type: ignore[attr-defined]  # ours is a group of commands
    parts = []
    for name in ("", *names, "prepare merge"):
        words = [*name.split(), "--help"]
        text = CliRunner().invoke(app, words, env={"COLUMNS": "80", "NO_COLOR": "1"}).output
        parts += [f"## streamdata {name}".rstrip(), "", "```text", text.strip("\n"), "```", ""]
    return "\n".join(parts)


def recipe_keys() -> str:
    """The keys of each target of a recipe: type, default, and what its docstring says."""
    from streamdata.recipe.targets import TARGETS, import_target

    return "\n".join(_of_target(name, import_target(name)) for name in sorted(TARGETS))


def _of_target(name: str, target: Any) -> str:
    documented = dict(_arguments(inspect.getdoc(target) or ""))
    first = (inspect.getdoc(target) or "").partition("\n")[0]
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for parameter in inspect.signature(target).parameters.values():
        default = f"`{getattr(parameter.default, '__name__', repr(parameter.default))}`"
        default = "required" if parameter.default is parameter.empty else default
        what = documented.get(parameter.name, "")
        rows.append(f"| `{parameter.name}` | {_kind(parameter.annotation)} | {default} | {what} |")
    title = name.removeprefix("streamdata.")
    return "\n".join([f"## {title}", "", first, "", "```yaml", example(name, target), "```", "", *rows, ""])


def example(name: str, target: Any) -> str:
    """A target as a recipe writes it, with the keys that it needs, or is hardly used without."""
    from streamdata.recipe.targets import MIXTURE, TARGETS

    taken = inspect.signature(target).parameters
    keys = [key for key, what in taken.items() if what.default is what.empty or key in _USUAL]
    params = {key: _VALUES[key] for key in keys if key in _VALUES}
    node = {"target": name, **({"params": params} if params or isinstance(target, type) else {})}
    if "percent" in TARGETS[name] and name != MIXTURE:
        node |= {"name": "mine", "percent": 1}
    return yaml.safe_dump(node, sort_keys=False, default_flow_style=None if params else False).strip()


def _kind(annotation: Any) -> str:
    """A type as a cell of a table: without the modules that its names are from, and of functions that they are such."""
    if annotation is inspect.Parameter.empty:
        return ""
    is_union = get_origin(annotation) in (Union, UnionType)
    return f"`{' | '.join(map(_word, get_args(annotation) if is_union else (annotation,)))}`"


def _word(kind: Any) -> str:
    if get_origin(kind) is Callable:
        return "function"
    if get_origin(kind) is list and get_origin(get_args(kind)[0]) is Callable:
        return "list of functions"
    text = "None" if kind is NoneType else inspect.formatannotation(kind)
    return re.sub(r"[a-z_][a-z_.]*[.]", "", text)


def _arguments(text: str) -> Iterator[tuple[str, str]]:
    section = re.search(r"^Args:\n((?:(?: {4}.*)?\n?)*)", text, re.MULTILINE)
    for found in re.finditer(r"^ {4}\*{0,2}(\w+): (.*(?:\n {5,}\S.*)*)", section[1] if section else "", re.MULTILINE):
        # A bar ends a cell, but within code, where a backslash before it would be shown.
        parts = re.sub(r"\s+", " ", found[2]).split("`")
        yield found[1], "`".join(part if number % 2 else part.replace("|", "\\|") for number, part in enumerate(parts))


GENERATED = {"front": front, "api": api, "commands": commands, "recipe_keys": recipe_keys, **DRAWINGS}

"""What the reference takes from the package itself: names, recipe keys and the help of each command.

A page has a line `<!-- generated: NAME -->`, which MkDocs replaces by what the function `NAME` returns, here or among
the drawings.
"""

import html
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from types import FunctionType, NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import yaml

import streamdata

sys.path.insert(0, str(Path(__file__).parent))  # MkDocs loads a hook by its path, without what lies beside it
from drawings import DRAWINGS

ROOT = Path(__file__).parents[1]
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
_HEAD = ("| key | type | default | meaning |", "|---|---|---|---|")
_USUAL = ("linear", "load_path", "quadratic", "window_size")
"""Keys that have a default, and that examples have all the same."""
_NAMED = re.compile(r"(?<!<b>)(?<!\">)<code>([A-Z][\w.]*|docs/[\w/-]+\.md)</code>")
"""A name or a page in a text: not an argument that is explained, which is bold, nor what has a link already."""
_BASE = re.compile(r"\bSee `(\w+)` for")
"""In a class's docstring: the base that has its arguments."""
_MEMBERS = (FunctionType, classmethod, staticmethod, property, cached_property)
_MARK = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace each mark of a page (a hook of MkDocs)."""
    return _MARK.sub(lambda mark: GENERATED[mark[1]](), markdown)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Name the search for those who hear it, let wide code be scrolled by keys, link names (a hook of MkDocs)."""
    output = output.replace('class="md-search"', 'class="md-search" aria-label="Search"')
    output = output.replace("<pre>", '<pre tabindex="0">')
    return _NAMED.sub(_linked, output) if page.file.src_uri.startswith("reference/") else output


def _linked(found: re.Match[str]) -> str:
    """A name in code as a link to its entry, if it has one; a page of `docs/` as a link with its heading."""
    text, name = found[0], found[1]
    if not name.startswith("docs/"):
        return f'<a href="{entries()[name]}">{text}</a>' if name in entries() else text
    heading = re.search(r"^# (.+)", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)
    assert heading, f"{name} has no heading"
    return f'<a href="../{name[5:-3]}.html">{html.escape(heading[1])}</a>'


def front() -> str:
    """README.md, whose links are seen from the pages; what is not one of these is named without a link."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n")[2]
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
    """Every public name with signature and docstring, by its group; and bases that have the arguments of some."""
    lines, bases = list[str](), list[str]()
    for title, names in groups():
        lines += [f"## {title[0].upper()}{title[1:]}", ""]
        for name in names:
            lines.append(f"::: streamdata.{name}\n")
            base = _base_of(getattr(streamdata, name))
            if base is not None and (path := _path_of(base)) not in bases:
                bases.append(path)  # by its full name, since it cannot be imported from streamdata
                lines.append(f"::: {path}\n    options:\n      show_root_full_path: true\n")
    return "\n".join(lines)


def _base_of(one: Any) -> type | None:
    """The base that a class's docstring names for its arguments, if that is not public."""
    found = _BASE.search(inspect.getdoc(one) or "") if isinstance(one, type) else None
    named = (base for base in inspect.getmro(one) if base.__name__ == found[1]) if found else iter(())
    return next((base for base in named if base.__name__ not in streamdata.__all__), None)


def _path_of(one: type) -> str:
    return f"{one.__module__}.{one.__qualname__}"


def docstrings() -> Iterator[tuple[str, str]]:
    """What the page of names shows: full names of classes, functions and their public members, with docstrings."""
    public = {f"streamdata.{name}": getattr(streamdata, name) for name in streamdata.__all__}
    bases = {_path_of(base): base for base in map(_base_of, public.values()) if base}
    for path, one in (public | bases).items():
        yield path, inspect.getdoc(one) or ""
        members = vars(one).items() if isinstance(one, type) else ()
        found = {name: member for name, member in members if name[0] != "_" and isinstance(member, _MEMBERS)}
        yield from ((f"{path}.{name}", inspect.cleandoc(each.__doc__)) for name, each in found.items() if each.__doc__)


@cache
def entries() -> dict[str, str]:
    """Where the reference has an entry, by name: `Store`, `Store.load`."""
    found = {re.sub(r"^(?:[a-z_]+\.)+", "", path): f"api.html#{path}" for path, _ in docstrings()}
    return found | {name: f"recipe.html#{name.lower()}" for _, name in _settings().values()}


def _settings() -> dict[str, tuple[str, str]]:
    """By target: the module and the class of its settings."""
    from streamdata.tools.cli.recipe_files import SETTINGS

    return SETTINGS


def commands() -> str:
    """The help of each command, as a terminal of 80 columns shows it."""
    from typer.main import get_command
    from typer.testing import CliRunner

    from streamdata.tools.cli.main import app

    names = list(get_command(app).commands)  # type: ignore[attr-defined]  # ours is a group of commands
    parts = []
    for name in ("", *names, "prepare merge"):
        words = [*name.split(), "--help"]
        env = {"COLUMNS": "80", "NO_COLOR": "1"}
        text = CliRunner().invoke(app, words, prog_name="streamdata", env=env).output
        parts += [f"## streamdata {name}".rstrip(), "", "```text", text.strip("\n"), "```", ""]
    return "\n".join(parts)


def recipe_keys() -> str:
    """The keys of each target of a recipe: type, default, and what its docstring says."""
    from streamdata.recipe.targets import TARGETS, import_target

    return "\n".join(_of_target(name, import_target(name)) for name in sorted(TARGETS))


def _of_target(name: str, target: Any) -> str:
    classes = inspect.getmro(target) if isinstance(target, type) else (target,)
    # Of a class that has the arguments of its base this says what they mean; its own docstring counts before it.
    documented = {key: text for one in reversed(classes) for key, text in _arguments(inspect.getdoc(one) or "")}
    lines = [f"## {name.removeprefix('streamdata.')}", "", _first_line(target), "", "```yaml", example(name, target)]
    lines += ["```", "", *_HEAD]
    for key, parameter in inspect.signature(target).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            lines.append(f"| further keys | | | {documented[key]} |")
        else:
            default = "required" if parameter.default is parameter.empty else _default(parameter.default)
            lines.append(f"| `{key}` | {_kind(parameter.annotation)} | {default} | {documented.get(key, '')} |")
    if name in _settings():
        module, settings = _settings()[name]
        lines += ["", *_of_settings(getattr(import_module(module), settings))]
    return "\n".join([*lines, ""])


def _of_settings(settings: Any) -> Iterator[str]:
    """The keys of a source's `config`."""
    yield from (f"### {settings.__name__}", "", _first_line(settings), "", *_HEAD)
    for key, field in settings.model_fields.items():
        default = "" if field.default_factory else _default(field.default)  # that one is of this machine
        yield f"| `{key}` | {_kind(field.annotation)} | {default} | {_cell(field.description or '')} |"


def _first_line(one: Any) -> str:
    return (inspect.getdoc(one) or "").partition("\n")[0]


def _default(value: Any) -> str:
    return f"`{getattr(value, '__name__', repr(value))}`"


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
        yield found[1], _cell(found[2])


def _cell(text: str) -> str:
    """A text of a docstring in a cell of a table: a bar ends it, but within code, where a backslash would be shown."""
    parts = re.sub(r"\s+", " ", text).split("`")
    return "`".join(part if number % 2 else part.replace("|", "\\|") for number, part in enumerate(parts))


GENERATED = {"front": front, "api": api, "commands": commands, "recipe_keys": recipe_keys, **DRAWINGS}

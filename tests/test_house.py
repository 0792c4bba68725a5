"""The house: imports go one way, importing is cheap, every public name is there."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import streamdata
from tests.budgets import DESIGN_WORDS, GLOSSARY_WORDS

PACKAGE = Path(streamdata.__file__).parent
FLOORS_OF_ROOMS = {
    "core": ["run", "recipe", "states", "io", "shards", "sources", "mixing", "delivery"],
    "beside": ["text", "stores", "chats", "ledger"],
    "above": ["compat", "prepare", "tools"],
}
FLOORS = [room for rooms in FLOORS_OF_ROOMS.values() for room in rooms]
"""The rooms, each of which imports only those before it."""

DESIGN = (PACKAGE / "README.md").read_text(encoding="utf-8")


def rows_of(heading):
    """The first cells of the table below a heading of the design."""
    section = DESIGN.split(f"## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| ([^|]+) \| .*\|$", section, re.MULTILINE)[1:]


def test_the_design_names_every_room():
    """In the order of the floors."""
    assert [room.strip("`/") for room in rows_of("Rooms")] == FLOORS


def test_the_words_of_the_glossary_are_those_of_the_code():
    """Each of them stands in some module; one that left the code must leave the glossary."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")).lower()
    words = rows_of("Words")
    assert 15 < len(words) <= GLOSSARY_WORDS
    assert [word for word in words if not re.search(rf"\b{word}s?\b", text)] == []


def test_files_that_the_design_names_are_there():
    """Paths below the package, and of tests from the repository's root."""
    named = re.findall(r"`((?:[a-z_0-9]+/)+(?:[a-z_0-9]+\.py)?)`", DESIGN)
    assert len(named) > 30
    new = {"shards/avro/"}  # of the kind of shard that is added there
    missing = {name for name in named if not any((root / name).exists() for root in (PACKAGE, PACKAGE.parent))}
    below = {f"{room.name}/" for room in PACKAGE.rglob("*") if room.is_dir()}  # `cache/` of a room's own line
    assert missing - new - below == set()


def test_what_the_design_shows_runs():
    """Its example of a crash and a resume."""
    (code,) = re.findall(r"```python\n(.*?)```", DESIGN, re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})  # noqa: S102  (our own page)


def test_the_design_fits_into_one_sitting():
    """A page that nobody reads to its end explains nothing."""
    assert len(DESIGN.split()) <= DESIGN_WORDS


@cache
def nodes_of(path):
    """All nodes of a file's code; several tests look at each."""
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


@cache
def imports_of(path):
    """The modules of streamdata that a file imports, in functions and for type checkers too, below `streamdata.`."""
    modules = []
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names if alias.name.startswith("streamdata.")]
        elif isinstance(node, ast.ImportFrom) and node.module == "streamdata":
            modules += [f"streamdata.{streamdata._MODULES.get(alias.name, alias.name)}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("streamdata."):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            modules += {
                name if (PACKAGE.parent / f"{name.replace('.', '/')}.py").exists() else node.module for name in names
            }
    return [module.removeprefix("streamdata.") for module in modules]


def module_of(path):
    """What is imported to have a file, below `streamdata.`; empty of the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in PACKAGE.rglob("*.py")}


@pytest.mark.parametrize("room", FLOORS)
def test_a_room_imports_only_itself_and_those_before_it(room):
    """Whatever imports: at run time, in a function or for type checkers; errors and names of fields are everybody's."""
    allowed = {*FLOORS[: FLOORS.index(room) + 1], "errors", "fields"}
    for path in (PACKAGE / room).rglob("*.py"):
        for module in imports_of(path):
            assert module.split(".")[0] in allowed, f"{module_of(path)} imports {module}"


def test_there_are_no_cycles_between_modules():
    """Each module can be imported first, and understood before those that import it."""
    done = set()

    def visit(name, trail):
        assert name not in trail, f"cycle: {' -> '.join([*trail, name])}"
        if name not in done:
            for other in {*imports_of(MODULES[name])} - {name}:
                visit(other, [*trail, name])
            done.add(name)

    for name in MODULES.keys() - {""}:  # the package's own names are lazy: they are those of the modules
        visit(name, [])


def test_importing_streamdata_imports_nothing_heavy():
    """Neither torch nor transformers, h5py, pyarrow or pydantic, until a name needs them."""
    heavy = ("torch", "transformers", "h5py", "pyarrow", "pydantic", "numpy")
    code = f"import sys, streamdata; print([name for name in {heavy} if name in sys.modules])"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"


def test_what_lanes_need_of_recipes_imports_no_omegaconf(python):
    """Whoever builds one does; a worker that is spawned need not wait for it."""
    modules = "streamdata.recipe.named_source, streamdata.recipe.limits, streamdata.mixing.merged"
    code = f"import sys, {modules}; print('omegaconf' in sys.modules)"
    assert python("-c", code).stdout.strip() == "False"


def test_every_public_name_is_there():
    """Lazily, and documented."""
    assert [name for name in streamdata.__all__ if not getattr(streamdata, name).__doc__] == []


def test_names_for_type_checkers_are_those_at_run_time():
    """The imports under TYPE_CHECKING and the lazy modules agree; `A as A` is what checkers take for an export."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {alias.name: node.module.removeprefix("streamdata.") for node in block.body for alias in node.names}
    assert typed == streamdata._MODULES
    assert all(alias.asname == alias.name for node in block.body for alias in node.names)


def test_an_unknown_name_is_an_attribute_error():
    """As for any module."""
    with pytest.raises(AttributeError, match="no attribute 'Merged'"):
        streamdata.Merged  # noqa: B018


def test_no_two_classes_share_a_name():
    """One word, one thing: whoever reads a name in a message or a traceback finds one class."""
    names = [node.name for path in PACKAGE.rglob("*.py") for node in nodes_of(path) if isinstance(node, ast.ClassDef)]
    assert len(names) > 100
    assert sorted(name for name in set(names) if names.count(name) > 1) == []


def test_docstrings_can_be_read_alone():
    """As hover text: none leans on its neighbour or leaves out its subject. `segments` is left as it is."""
    leaning = re.compile(r"(What|Of|The same|Likewise|As|Whose|Which|Those|So|Such)\b")
    found = []
    for path in PACKAGE.rglob("*.py"):
        for node in nodes_of(path):
            said = node.value if isinstance(node, ast.Expr) else None
            if isinstance(said, ast.Constant) and isinstance(said.value, str) and leaning.match(said.value):
                found.append(f"{path.relative_to(PACKAGE)}:{node.lineno} {said.value.splitlines()[0]}")
    assert [line for line in found if not line.startswith("stores/segments.py")] == []

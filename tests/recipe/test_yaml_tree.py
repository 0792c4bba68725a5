from typing import Any

import pytest

from streamdata.recipe.yaml_tree import Locations, Problem, UnreadableError, read_yaml


def read(text: str) -> Any:
    """Reads as building does."""
    return read_yaml(text.encode(), Locations("r.yaml"))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1e3", 1000.0),
        ("-.5", -0.5),
        ("2020-01-02", "2020-01-02"),
        ("12:30", "12:30"),
        ("1:30.5", "1:30.5"),
        ("0x10", 16),
        ("1_000", 1000),
        (".inf", float("inf")),
        ("yes", True),
        ("~", None),
        ("'7'", "7"),
        ("1e", "1e"),
        ("=", "="),
        ("1.2.3", "1.2.3"),
        ("-", [None]),
        ("0", 0),
        ("1.", 1.0),
    ],
)
def test_scalars_are_read_as_omegaconf_reads_them(text: str, value: object) -> None:
    """Exponents make floats; dates and times stay text."""
    got = read(f"a: {text}\n" if text != "-" else "a:\n  -\n")["a"]
    assert got == value
    assert type(got) is type(value)


def test_every_node_has_its_location() -> None:
    """Locations count lines and columns from one, for values and keys."""
    locations = Locations("r.yaml")
    read_yaml(b"a:\n  - b: 1\n    c: [x,  y]\n", locations)
    assert locations.of(("a", 0)) == "r.yaml:2:5"
    assert locations.of(("a", 0, "c", 1)) == "r.yaml:3:13"
    assert locations.of(("a", 0, "c"), key=True) == "r.yaml:3:5"
    assert locations.of(("a", 0, "c", "beyond")) == "r.yaml:3:8"


def test_duplicate_keys_are_all_reported() -> None:
    """Each repetition is an error that names the first one, and reading goes on."""
    found: list[Problem] = []
    locations = Locations("r.yaml", on_problem=lambda problem, _: found.append(problem))
    read_yaml(b"a: 1\nb: {x: 1, x: 2}\na: 2\n", locations)
    assert [str(problem) for problem in found] == [
        "r.yaml:3:1: a: the key 'a' is given twice, the first time in line 1",
        "r.yaml:2:11: b.x: the key 'x' is given twice, the first time in line 2",
    ]


def test_an_alias_is_a_copy() -> None:
    """Two uses of an anchor share nothing."""
    tree = read("a: &x {b: [1]}\nc: *x\n")
    assert tree["c"] == {"b": [1]}
    assert tree["a"]["b"] is not tree["c"]["b"]


def test_merge_keys_give_way_to_own_keys() -> None:
    """`<<` adds what a mapping does not say itself, the first source first."""
    tree = read("a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc:\n  <<: [*a, *b]\n  x: 3\n")
    assert tree["c"] == {"x": 3, "y": 1, "z": 2}


@pytest.mark.parametrize("text", ["a: &x [*x]", "a: &x {b: {c: *x}}", "a: &x {<<: *x}"])
def test_cycles_are_errors(text: str) -> None:
    """An alias to what holds it is reported at its location."""
    with pytest.raises(UnreadableError, match=r"r\.yaml:1:\d+: a(?s:.*)a node that holds it \(a cycle\)"):
        read(text)


@pytest.mark.parametrize(
    "form", ["[*{0},*{0},*{0},*{0},*{0},*{0},*{0},*{0}]", "{{<<: [*{0},*{0},*{0},*{0},*{0},*{0}]}}"]
)
def test_alias_bombs_are_errors(form: str) -> None:
    """Aliases of aliases are stopped before they fill the memory."""
    lines = ["a0: &a0 {k: 1}"] + [f"a{n}: &a{n} " + form.format(f"a{n - 1}") for n in range(1, 12)]
    with pytest.raises(UnreadableError, match="more nodes than may be"):
        read("\n".join(lines))


@pytest.mark.parametrize("depth", [150, 5000])
def test_deep_nesting_is_an_error(depth: int) -> None:
    """Neither a stack overflow nor a RecursionError."""
    with pytest.raises(UnreadableError, match="nested deeper than 100"):
        read("[" * depth + "]" * depth)


@pytest.mark.parametrize(
    "tag", ["!!python/object/apply:os.system ['true']", "!!python/name:os.system", "!x 1", "!!binary aGk=", "!!set {a}"]
)
def test_tags_build_nothing(tag: str) -> None:
    """Only plain mappings, lists and scalars are read."""
    with pytest.raises(ValueError, match=r"r\.yaml:1:4: a: the YAML tag .* is refused"):
        read(f"a: {tag}")


@pytest.mark.parametrize("text", ["? [1]\n: 2", "~: 1", "? {a: 1}\n: 2"])
def test_keys_are_text_or_numbers(text: str) -> None:
    """Null and nested keys are errors."""
    with pytest.raises(ValueError, match=r"r\.yaml:1:\d: root"):
        read(text)


def test_a_wrong_number_is_an_error() -> None:
    """An explicit tag that its text does not fit is reported, not raised as KeyError."""
    with pytest.raises(ValueError, match="expected a value of YAML type bool, got another text"):
        read("a: !!bool perhaps")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: 1\nb: \xff\n", r"r\.yaml:2:4: root: expected UTF-8"),
        (b"a: [1,\nb: 2\n", r"r\.yaml:\d:\d: .*not valid YAML"),
        (b"a: 1\n---\nb: 2\n", r"r\.yaml:2:1: .*not valid YAML"),
        (b"a: \x07", "not valid YAML"),
        (b"a: *b", ":1:4:"),
    ],
)
def test_what_is_not_yaml_says_where(content: bytes, message: str) -> None:
    """Encoding and syntax errors have line and column."""
    with pytest.raises(UnreadableError, match=message):
        read_yaml(content, Locations("r.yaml"))


def test_a_byte_order_mark_is_accepted() -> None:
    """Editors on Windows write one."""
    assert read_yaml(b"\xef\xbb\xbfa: 1", Locations("r.yaml")) == {"a": 1}

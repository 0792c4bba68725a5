from collections.abc import Callable
from pathlib import Path

import pytest

from streamdata import instantiate_from_yaml
from streamdata.errors import RecipeError
from streamdata.recipe.check import check_recipe
from streamdata.recipe.limits import refusal_of_directory, refusal_of_url, under_allow

Write = Callable[..., str]
CHATS = """
target: streamdata.SFTChatDataset
params: {data_files: chats.parquet, tokenizer: none, config: {cache_dir: '%s', use_shm: %s}}
"""


@pytest.fixture(autouse=True)
def _chats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setenv("STREAMDATA_CACHE", str(tmp_path / "cache"))
    pq.write_table(
        pa.Table.from_pylist([{"messages": [{"role": "user", "content": "hi"}]}]), tmp_path / "chats.parquet"
    )


def test_a_recipe_under_allow_does_not_say_where_to_write(write: Write, tmp_path: Path) -> None:
    """Neither in the file system nor in shared memory; without allow it does."""
    recipe = write(CHATS % ("elsewhere", "false"))
    with pytest.raises(RecipeError, match=r"got 'elsewhere' in a recipe that is built under allow\n  Leave it out"):
        instantiate_from_yaml(recipe, allow=[])
    assert not Path("elsewhere").exists()
    with pytest.raises(RecipeError, match="got '/dev/shm/streamdata-"):
        instantiate_from_yaml(write(CHATS % (tmp_path / "cache" / "chats", "true"), "shm.yaml"), allow=[])
    assert len(instantiate_from_yaml(recipe)) == 1
    assert Path("elsewhere/rows").exists()


def test_it_writes_in_the_directories_of_variables(write: Write, tmp_path: Path) -> None:
    """The caller named them; a link that leads out of them does not count."""
    recipe = write(CHATS % ("${variables:data}/cache", "false"))
    assert len(instantiate_from_yaml(recipe, {"data": str(tmp_path / "data")}, allow=[])) == 1
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "cache").symlink_to(tmp_path / "other")
    for path in (recipe, write(CHATS % ("${variables:data}/../other", "false"), "above.yaml")):
        with pytest.raises(RecipeError, match="built under allow"):
            instantiate_from_yaml(path, {"data": "linked"}, allow=[])


def test_permission_ends_with_the_building(write: Write) -> None:
    """Whether it went well or not."""
    with pytest.raises(RecipeError):
        instantiate_from_yaml(write("target: zoo.Gone"), allow=[])
    assert refusal_of_directory("/anywhere") is None
    with under_allow([], {"a": "", "b": "x", "c": 3}):
        assert refusal_of_directory("x/y") is None
        assert refusal_of_directory(".") is not None


@pytest.mark.parametrize(
    ("url", "is_refused"),
    [
        ("simplecache::s3://b/x.tar", True),
        ("s3://b/a::file:///x.tar", True),
        ("reference://x", True),
        ("libarchive://x", True),
        ("s3://b/x.tar", False),
        ("HTTPS://h/x.tar", False),
        ("a/b.tar", False),
        ("/a:b/c.tar", False),
    ],
)
def test_urls_that_do_more_than_read_are_refused_under_allow(url: str, is_refused: bool) -> None:
    """Those of file systems that keep copies, or do as a file says."""
    assert refusal_of_url(url) is None
    with under_allow([], {}):
        assert (refusal_of_url(url) is not None) == is_refused


@pytest.mark.usefixtures("zoo")
def test_a_check_finds_commands_and_urls(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """In lists and included files, as building would; those of other packages are their own."""
    monkeypatch.delenv("STREAMDATA_ALLOW_PIPES", raising=False)
    write("- 'pipe:cat x'\n- a.jsonl\n", "paths.yaml")
    recipe = write("""\
        - {target: streamdata.JsonlIterableDataset, params: {path: ['pipe:cat y']}}
        - {target: streamdata.JsonlIterableDataset, params: {path: {include: paths.yaml}}}
        - {target: streamdata.JsonlIterableDataset, params: {path: 'simplecache::s3://b/x.jsonl'}}
        - {target: zoo.Any, params: {name: 'pipe:cat z'}}
        - {target: streamdata.JsonlIterableDataset, params: {path: 'a.jsonl, pipe:cat x'}}
        """)
    found = check_recipe(recipe, imports=["zoo"])
    assert [problem.location for problem in found] == ["recipe.yaml:1:61", "paths.yaml:1:3", "recipe.yaml:5:60"]
    assert all("a command that would be run" in problem.message for problem in found)
    assert [problem.location for problem in check_recipe(recipe, allow=["zoo"])][2:3] == ["recipe.yaml:3:60"]
    monkeypatch.setenv("STREAMDATA_ALLOW_PIPES", "1")
    assert check_recipe(recipe, imports=["zoo"]) == []

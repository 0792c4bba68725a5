import logging
import os
from pathlib import Path

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdata.shards.listing import JSONL_SUFFIXES, MAX_PATHS, TAR_SUFFIXES, check_braces, is_sequential
from streamdata.shards.urls import expand, split_commas


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Some empty shards, and files that are none."""
    for name in (
        *("a/0.tar", "a/1.tar", "a/2.tar.gz", "a/README", "a/.hidden.tar", "a/sub/9.tar", "b/0.tar", "b/0.jsonl"),
        *("b/0.meta.jsonl", "c/x{1}.tar", "c/with,comma.tar", "empty/none.txt"),
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a/0.tar", ["a/0.tar"]),
        ("a/{0..1}.tar", ["a/0.tar", "a/1.tar"]),
        ("{a,b}/0.tar", ["a/0.tar", "b/0.tar"]),
        ("a/?.tar", ["a/0.tar", "a/1.tar"]),
        ("a/*", ["a/0.tar", "a/1.tar", "a/2.tar.gz", "a/sub/9.tar"]),
        ("a", ["a/0.tar", "a/1.tar", "a/2.tar.gz", "a/sub/9.tar"]),
        ("a/", ["a/0.tar", "a/1.tar", "a/2.tar.gz", "a/sub/9.tar"]),
        ("a/*.tar*", ["a/0.tar", "a/1.tar", "a/2.tar.gz"]),
        ("[ab]", ["a/0.tar", "a/1.tar", "a/2.tar.gz", "a/sub/9.tar", "b/0.tar"]),
        ("{a,b}/[0].tar", ["a/0.tar", "b/0.tar"]),
        ("b/0.tar, a/{1,0}.tar", ["a/0.tar", "a/1.tar", "b/0.tar"]),
        (["b/0.tar", "a/0.tar"], ["a/0.tar", "b/0.tar"]),
        ("c/x{1}.tar", ["c/x{1}.tar"]),
        ("c/with,comma.tar", ["c/with,comma.tar"]),
        ("b/0.jsonl", ["b/0.jsonl"]),
    ],
)
def test_paths_of_each_kind_give_sorted_urls(tree, path, expected):
    """Names, braces, globs, directories, lists, and several joined by commas; spelt as in the recipe."""
    assert expand(path, TAR_SUFFIXES) == expected


@pytest.mark.parametrize(
    "pattern",
    [
        *("{0..999999999999}.tar", "{a,b}" * 21, "{{0..9999999},a}.tar", "{" + "0" * 5000 + "..9}.tar"),
        *("{0..999999}" + "x" * 300, "{" * 1000 + "}" * 1000, "a*999999999"),
    ],
)
def test_more_paths_than_can_be_read_are_an_error_at_once(tree, pattern):
    """Braces are counted, and copies too, before there is a list of them; the pattern is named, cut."""
    paths = (["b/0.tar"], [pattern]) if "*" in pattern else (pattern, None)
    with pytest.raises(ValueError, match=r"expected at most") as error:
        expand(paths[0], TAR_SUFFIXES, paths[1])
    assert len(str(error.value)) < 400


def test_a_brace_expression_is_counted_as_it_is_expanded(tree):
    """Steps, letters, escapes, and braces that stand for themselves."""
    for pattern in ("{9..0..2}{c..A}", r"\{a{1,2}", "{x}{,y}", "}{{0..9}", "a}b{c", "{{1..2},{a,b{3,4}}}"):
        check_braces(f"{pattern}.tar")
        with pytest.raises(ValueError, match=f"expected at most {MAX_PATHS}"):
            check_braces(pattern + "{1..1000000}{1,2}")


def test_a_link_in_a_circle_hides_no_shards(tree):
    """It is no folder; named itself it is an error."""
    os.symlink("loop.yaml", "b/loop.yaml")
    assert expand("b/*.tar", TAR_SUFFIXES) == expand("b", TAR_SUFFIXES) == ["b/0.tar"]
    with pytest.raises((OSError, ValueError), match=r"loop\.yaml"):
        expand("b/loop.yaml", TAR_SUFFIXES)


def test_a_fifo_is_no_shard(tree):
    """Nor does a name that no disk takes end in an error of the system's."""
    os.mkfifo("b/fifo.tar")
    with pytest.raises(FileNotFoundError, match=r"'b/fifo.tar': expected a file or directory, got something else"):
        expand("b/fifo.tar", TAR_SUFFIXES)
    with pytest.raises(FileNotFoundError, match="expected a file or directory, got none"):
        expand("b" * 300 + ".tar", TAR_SUFFIXES)


def test_absolute_paths_stay_absolute(tree):
    """Urls are spelt as the recipe spells them, here from the root."""
    assert expand(str(tree / "b"), TAR_SUFFIXES) == [str(tree / "b/0.tar")]
    assert expand(f"file://{tree}/a/?.tar", TAR_SUFFIXES) == [f"file://{tree}/a/0.tar", f"file://{tree}/a/1.tar"]


def test_sidecars_and_hidden_files_are_no_shards(tree):
    """Directories and globs of .jsonl leave .meta.jsonl out; a sidecar that is spelt out is taken."""
    assert expand("b", JSONL_SUFFIXES) == ["b/0.jsonl"]
    assert expand("b/*.jsonl", JSONL_SUFFIXES) == ["b/0.jsonl"]
    assert expand("b/0.meta.jsonl", JSONL_SUFFIXES) == ["b/0.meta.jsonl"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("a/7.tar", "'a/7.tar'"),
        ("a/{0..2}.tar", r"'a/\{0\.\.2\}\.tar'.*'a/2\.tar'"),
        ("a/*.nothing", r"'a/\*\.nothing'.*got nothing"),
        ("a/READM?", r"1 files that are not shards"),
        ("empty", "'empty'.*directory of shards"),
        ("b/0.tar,nowhere", "'nowhere'"),
    ],
)
def test_a_pattern_that_matches_nothing_is_an_error(tree, path, message):
    """The error names the pattern, and the part of it that is missing."""
    with pytest.raises(FileNotFoundError, match=message):
        expand(path, TAR_SUFFIXES)


@pytest.mark.parametrize("path", ["a/0.tar,a/?.tar", ["a/0.tar", "a/0.tar"], "a/0.tar,a/../a/0.tar", "a,a/1.tar"])
def test_a_shard_named_twice_is_an_error(tree, path):
    """However it is spelt; the error names both patterns."""
    with pytest.raises(ValueError, match=r"by 'a.*' and by 'a"):
        expand(path, TAR_SUFFIXES)


def test_urls_that_differ_in_their_query_alone_are_one_shard():
    """The error says so: it shows no query."""
    url = "https://host/x.tar"
    with pytest.raises(ValueError, match=rf"expected '{url}' once, .*(.|\n)*differ in their query alone are one shard"):
        expand([f"{url}?part=1", f"{url}?part=2"], TAR_SUFFIXES)


def test_a_shard_in_path_and_include_dirs_is_an_error(tree):
    """Copies are asked for by '*n' alone."""
    with pytest.raises(ValueError, match=r"by 'b/0\.tar' and by 'b\*2'"):
        expand("b/0.tar", TAR_SUFFIXES, ["b*2"])


@pytest.mark.parametrize("folders", ["a*2,b", ["a*2", "b"], ["b", "a*2"]])
def test_include_dirs_give_copies(tree, folders):
    """'*n' gives each shard n times, beside the others."""
    urls = expand([], TAR_SUFFIXES, folders)
    assert urls == [*["a/0.tar"] * 2, *["a/1.tar"] * 2, *["a/2.tar.gz"] * 2, *["a/sub/9.tar"] * 2, "b/0.tar"]


@pytest.mark.parametrize("folder", ["a*0", "nowhere*2", "empty", "b/0.tar"])
def test_include_dirs_must_be_directories_of_shards(tree, folder):
    """No copies, no directory, none in it, or a file."""
    with pytest.raises((ValueError, FileNotFoundError), match=folder.replace("*", r"\*")):
        expand("a/0.tar", TAR_SUFFIXES, folder)


@pytest.mark.parametrize("path", ["", [], [""], "a/0.tar,,b", [None], {"a/0.tar": 1}])
def test_empty_paths_are_errors(tree, path):
    """Neither nothing, nor nothing between two commas."""
    with pytest.raises(ValueError, match="shards: expected"):
        expand(path, TAR_SUFFIXES)


def test_pipes_need_leave_of_the_environment(monkeypatch):
    """A command is refused unless the environment allows pipes; then its braces are expanded."""
    with pytest.raises(ValueError, match="STREAMDATA_ALLOW_PIPES=1"):
        expand("pipe:cat {0..1}.tar", TAR_SUFFIXES)
    monkeypatch.setenv("STREAMDATA_ALLOW_PIPES", "1")
    assert expand("pipe:cat {0..1}.tar", TAR_SUFFIXES) == ["pipe:cat 0.tar", "pipe:cat 1.tar"]


@pytest.mark.parametrize("pattern", ["*.jsonl", "{pipe:id;,x}.jsonl"])
def test_a_files_name_is_not_run_as_a_command(tmp_path, monkeypatch, pattern):
    """Where commands are allowed, whoever names a file would run them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STREAMDATA_ALLOW_PIPES", "1")
    for name in ("pipe:id;.jsonl", "x.jsonl"):
        Path(name).write_text("{}\n")
    with pytest.raises(ValueError, match=r"got 'pipe:id;\.jsonl' by .*, whose name reads as a command"):
        expand(pattern, JSONL_SUFFIXES)
    assert expand("./*.jsonl", JSONL_SUFFIXES) == ["./pipe:id;.jsonl", "./x.jsonl"]


def test_remote_globs_directories_and_braces():
    """Through fsspec: spelt as in the recipe, or with the scheme where a listing found them."""
    memory = fsspec.filesystem("memory")
    for name in ("/urls/0.tar", "/urls/1.tar", "/urls/note.txt", "/urls/deep/2.tar"):
        memory.pipe(name, b"")
    for path, names in {"*.tar": "01", "": ["0", "1", "deep/2"], "/": ["0", "1", "deep/2"]}.items():
        found = expand(f"memory://urls/{path}".removesuffix("//"), TAR_SUFFIXES)
        assert [url.replace("memory:///", "memory://") for url in found] == [f"memory://urls/{n}.tar" for n in names]
    assert expand("memory://urls/{0..1}.tar", TAR_SUFFIXES) == ["memory://urls/0.tar", "memory://urls/1.tar"]
    with pytest.raises(FileNotFoundError, match="got nothing"):
        expand("memory://urls/*.jsonl", TAR_SUFFIXES)
    with pytest.raises(ValueError, match="once"):
        expand("memory://urls/0.tar,memory:///urls/0.tar", TAR_SUFFIXES)


NESTED = ("0.jsonl", "a/1.jsonl", "a/b/2.jsonl", "a/b/.h/3.jsonl", ".h/4.jsonl", "c.d/b/5.jsonl.gz", "a/.6.jsonl")


@pytest.fixture(params=["local", "memory"])
def nested(request, tmp_path):
    """Shards in nested folders, some hidden; the url of the top."""
    if request.param == "memory":
        for name in NESTED:
            fsspec.filesystem("memory").pipe(f"/nested/{name}", b"{}\n")
        return "memory:///nested"
    for name in NESTED:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"{}\n")
    return str(tmp_path)


@pytest.mark.parametrize(
    ("path", "numbers"),
    [
        *(("", "0125"), ("/", "0125"), ("/**", "0125"), ("/*", "0125"), ("/**/*.jsonl", "012"), ("/**/*.gz", "5")),
        *(("/*/", "125"), ("/**/", "0125"), ("/*/*.jsonl", "1"), ("/**/b/*", "25"), ("/**/b", "25"), ("/?/**", "12")),
        *(("/a/**/*.jsonl", "12"), ("/[!a]*/**", "5"), ("/**/**/2.jsonl", "2"), ("/*/b/?.jsonl", "2")),
        *(("/.h/*", "4"), ("/.h", "4"), ("/.*/*", "4"), ("/**/.h/*.jsonl", "34"), ("/{a,.h}/*.jsonl", "14")),
    ],
)
def test_folders_and_globs_reach_all_depths(nested, path, numbers):
    """The same files locally and remote; hidden names are found by what begins with a dot alone."""
    found = expand(nested + path, JSONL_SUFFIXES)
    assert sorted(url.removeprefix(nested + "/") for url in found) == sorted(NESTED[int(n)] for n in numbers)
    assert found == sorted(found)


def test_a_recursive_glob_in_the_present_folder(tree):
    """Without a folder before it, and spelt without one."""
    assert expand("**/?.tar", TAR_SUFFIXES) == ["a/0.tar", "a/1.tar", "a/sub/9.tar", "b/0.tar"]


def test_linked_folders_are_left_out_with_a_warning_unless_they_are_spelt_out(tree, caplog):
    """They may lead to the same shards again, or in a circle; linked files are read."""
    (tree / "b/link").symlink_to(tree / "a")
    (tree / "b/circle").symlink_to(tree / "b")
    (tree / "b/1.tar").symlink_to(tree / "a/1.tar")
    for path in ("b", "b/**", "b/*", "[b]"):
        caplog.clear()
        assert expand(path, TAR_SUFFIXES) == ["b/0.tar", "b/1.tar"]
        assert "2 folders are symbolic links and left out: b/circle, b/link; name them to read them" in caplog.text
    linked = ["b/link/0.tar", "b/link/1.tar"]
    assert expand("b/link/?.tar", TAR_SUFFIXES) == expand("[b]/link/?.tar", TAR_SUFFIXES) == linked


def test_a_tilde_is_the_home_folder(tree, monkeypatch):
    """In names, folders, globs, lists, braces and include_dirs."""
    monkeypatch.setenv("HOME", str(tree))
    both = [f"{tree}/a/0.tar", f"{tree}/b/0.tar"]
    for path in ("~/a/0.tar,~/b", ["~/b/*", "~/a/[0].tar"], "{~/a/0.tar,~/b/0.tar}"):
        assert expand(path, TAR_SUFFIXES) == both
    assert expand("file://~/b", TAR_SUFFIXES, "~/empty/../c*2")[-1] == f"file://{tree}/b/0.tar"


def test_one_line_counts_the_shards_of_each_folder(tree, caplog):
    """So that a folder which is missing can be seen."""
    with caplog.at_level(logging.INFO, "streamdata"):
        expand("a,b/0.tar", TAR_SUFFIXES)
    assert caplog.messages == ["shards: 5, by folder (3): a 3, a/sub 1, b 1"]


@pytest.mark.parametrize(
    ("suffixes", "name"),
    [
        *((JSONL_SUFFIXES, f"x{end}") for end in (".jsonlines", ".json.gz", ".jsonl.lz4", ".JSONL", ".jsonl.GZ")),
        *((JSONL_SUFFIXES, f"x{end}") for end in (".jsonlines.bz2", ".json.zst")),
        *((TAR_SUFFIXES, f"x{end}") for end in (".TAR", ".tar.xz", ".tar.zstd", ".tbz2", ".Tgz")),
        *(((".parquet",), f"x{end}") for end in (".PARQUET", ".pq", ".parquet.gz")),
    ],
)
@pytest.mark.parametrize("path", ["d", "d/*", "d/deep/**"])
def test_shards_by_names_that_are_not_taken_are_an_error(tmp_path, monkeypatch, suffixes, name, path):
    """They were meant too, so that without them the epoch would be smaller than it looks."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d/deep").mkdir(parents=True)
    (tmp_path / f"d/deep/0{suffixes[0]}").touch()
    assert len(expand(path, suffixes)) == 1
    (tmp_path / "d/deep" / name).touch()
    with pytest.raises(ValueError, match=rf"got 1 of them, and 1 of the same kind by other names: 'd/deep/{name}'"):
        expand(path, suffixes)
    assert len(expand(f"d/**/*{suffixes[0]}", suffixes)) == 1
    (tmp_path / f"d/deep/0{suffixes[0]}").unlink()
    with pytest.raises(ValueError, match=r"got 0 of them, and 1 of the same kind"):
        expand(path, suffixes)


@pytest.mark.parametrize("suffixes", [JSONL_SUFFIXES, TAR_SUFFIXES, (".parquet",)])
def test_other_files_beside_shards_are_none(tmp_path, suffixes):
    """Sidecars, indexes, sums, a lone .json, what is hidden, and shards of other kinds."""
    for name in (
        *(f"0{suffixes[0]}", "0.meta.jsonl", "0.META.JSONL", "0.tar.idx", "0.tar.md5", ".0.jsonl.jsonl.index"),
        *("info.json", "dataset_info.JSON", ".1.ndjson", "2.jsonl.tmp", "README.md", "3.json.sha256", "4.jpg"),
    ):
        (tmp_path / name).touch()
    assert expand(str(tmp_path), suffixes) == [str(tmp_path / f"0{suffixes[0]}")]


def test_a_folder_takes_lines_by_all_their_names(tmp_path):
    """A lone .json may be anything: a glob that ends so says what it is, and so does a list."""
    compressed = ("", ".gz", ".zst", ".zstd", ".bz2", ".xz")
    names = [f"{end}{packed}" for end in ("a.jsonl", "a.ndjson") for packed in compressed]
    for name in (*names, "info.json"):
        (tmp_path / name).touch()
    assert expand(str(tmp_path), JSONL_SUFFIXES) == sorted(str(tmp_path / name) for name in names)
    assert expand(str(tmp_path / "*"), JSONL_SUFFIXES) == sorted(str(tmp_path / name) for name in names)
    (tmp_path / "b.json.gz").touch()
    assert expand(str(tmp_path / "*.json.gz"), JSONL_SUFFIXES) == [str(tmp_path / "b.json.gz")]
    assert expand(str(tmp_path / "*.json"), JSONL_SUFFIXES) == [str(tmp_path / "info.json")]
    assert expand([str(tmp_path / "info.json")], JSONL_SUFFIXES) == [str(tmp_path / "info.json")]


def test_sequential_shards_are_those_that_are_compressed_or_piped():
    """By suffix alone."""
    assert [is_sequential(url) for url in ("a.tar", "a.tar.gz", "a.tgz", "a.jsonl.zst", "pipe:cat a.tar")] == [
        *(False, True, True, True, True)
    ]


@given(st.lists(st.text(st.characters(exclude_characters="{},"), min_size=1), min_size=1), st.data())
def test_commas_split_outside_braces_only(parts, data):
    """Joining parts by commas and splitting them again is the identity, with commas inside braces or without."""
    braced = [part if data.draw(st.booleans()) else f"{{{part},{part}}}" for part in parts]
    assert split_commas(",".join(braced)) == braced


@given(st.sets(st.integers(0, 40), min_size=1), st.data())
def test_any_way_of_naming_the_same_shards_gives_the_same_urls(tmp_path_factory, numbers, data):
    """Lists in any order, commas, braces and directories agree."""
    folder = tmp_path_factory.mktemp("shards")
    paths = [str(folder / f"{number:03d}.tar") for number in numbers]
    for path in paths:
        Path(path).touch()
    shuffled = data.draw(st.permutations(paths))
    braces = os.path.join(folder, "{" + ",".join(f"{number:03d}" for number in numbers) + "}.tar")
    expected = sorted(paths)
    ways = (shuffled, ",".join(shuffled), str(folder), f"{folder}/*.tar", *([braces] if len(numbers) > 1 else []))
    for path in ways:
        assert expand(path, TAR_SUFFIXES) == expected


def test_a_folder_of_json_alone_says_what_takes_it(tmp_path):
    """It may hold anything, so the folder's name is not enough."""
    (tmp_path / "a.json").touch()
    with pytest.raises(FileNotFoundError, match=r"got 1 that may be something else, which a glob such as '\*\.json'"):
        expand(str(tmp_path), JSONL_SUFFIXES)

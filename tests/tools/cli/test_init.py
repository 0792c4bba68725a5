"""`streamdata init`: what people have becomes a recipe that checks and streams."""

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from typer.testing import Result

from streamdata import StoreWriter, instantiate_from_yaml
from tests.shard_files import jpeg, write_jsonl, write_tars
from tests.text.chat_templates import CHATML, chat_tokenizer

Streamdata = Callable[..., Result]
Init = Callable[..., list[dict]]
TURNS = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a tokenizer."""
    path = tmp_path_factory.mktemp("tokenizer")
    made = chat_tokenizer(path, CHATML)
    made.pad_token = "<|start|>"
    made.save_pretrained(path / "saved")
    return str(path / "saved")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STREAMDATA_CACHE", str(tmp_path / ".cache"))


@pytest.fixture
def init(streamdata: Streamdata, tokenizer: str) -> Init:
    """Writes the recipe of paths, checks it, draws a sample of each source; returns the sources with these samples."""

    def sources(*paths: object) -> list[dict]:
        done = streamdata("init", *paths)
        assert done.exit_code == 0, done.stderr
        text = Path("recipe.yaml").read_text()
        assert [line for line in (text + done.stdout).splitlines() if len(line) > 80 and " path: " not in line] == []
        found = yaml.safe_load(text)["params"]["datasets"]
        variables = {"tokenizer": tokenizer} if "tokenizer: ${variables:tokenizer}\n        config" in text else {}
        assert ("--var tokenizer=NAME" in done.stdout) == bool(variables)
        checked = streamdata("check", "recipe.yaml", *(f"--var={key}={value}" for key, value in variables.items()))
        assert checked.stdout == "recipe.yaml: 0 errors, 0 warnings, 0 not checked\n"
        stream = iter(instantiate_from_yaml("recipe.yaml", variables))
        samples = [next(stream) for _ in found]
        by_name = {sample["__datasetname__"]: sample for sample in samples}
        assert [source["percent"] for source in found] == [1] * len(found)
        assert by_name.keys() == {source["name"] for source in found}
        return [source | {"sample": by_name[source["name"]]} for source in found]

    return sources


def write_rows(name: str, *rows: dict) -> None:
    """Lines of JSON."""
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_pairs(name: str) -> None:
    """A pair of Megatron."""
    with StoreWriter("megatron", "made", {"sequence": "uint16"}) as writer:
        writer.append({"sequence": range(40)})
    for path in list(Path("made").iterdir()):
        path.rename(name + path.name.removeprefix("data_0000"))


def test_jsonl_files_in_a_folder_are_one_source(init: Init) -> None:
    """Called as the folder; with the fields of its first record as a comment, and what makes tokens of it."""
    write_jsonl(Path("web"), [3, 4])
    (source,) = init("web")
    assert (source["name"], source["params"]) == ("web", {"path": "web"})
    text = Path("recipe.yaml").read_text()
    assert "# 2 files, " in text
    assert "# The first record: value (int), text (str)." in text
    assert "      # process_fn:\n      #   target: streamdata.TextJsonlProcessFnBuilder" in text


def test_what_stands_as_a_comment_works_where_it_stands(init: Init, tokenizer: str) -> None:
    """The process function, once its comment signs are removed."""
    write_rows("a.jsonl", {"body": "some words", "id": "7"})
    init("a.jsonl")
    head, lines = Path("recipe.yaml").read_text().split("      # process_fn:\n")
    Path("recipe.yaml").write_text(f"{head}      process_fn:\n{lines.replace('      #   ', '        ')}")
    sample = next(iter(instantiate_from_yaml("recipe.yaml", {"tokenizer": tokenizer})))
    assert sample["tokens"].shape == (2048,)


@pytest.mark.parametrize("name", ["a.json", "a.jsonl.gz", "a.csv", "a.tsv", "a.parquet"])
def test_a_file_of_rows_is_a_source(init: Init, name: str) -> None:
    """An array, compressed lines, values between commas or tabs, and parquet."""
    rows = [{"kind": "x", "line": "1"}, {"kind": "y", "line": "2"}]
    path = Path(name)
    match path.suffix:
        case ".json":
            path.write_text(json.dumps(rows))
        case ".gz":
            path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
        case ".parquet":
            pq.write_table(pa.Table.from_pylist(rows), path)
        case _:
            between = "\t" if name == "a.tsv" else ","
            path.write_text("".join(f"{between.join(row)}\n" for row in (rows[0], *(row.values() for row in rows))))
    (source,) = init(name)
    assert source["params"] == {"path": name}
    assert source["sample"].items() >= rows[int(source["sample"]["__key__"])].items()


def test_fields_of_sidecars_join_tars(init: Init) -> None:
    """Their names are meta_names, and the sidecars no source of their own."""
    write_tars(Path("pairs"), [2, 2], images=True)
    (source,) = init("pairs")
    assert source["params"] == {"path": "pairs", "meta_names": ["score"]}
    assert source["sample"].keys() >= {"jpg", "txt", "score"}
    assert "ImageTextPairProcessFnBuilder" in Path("recipe.yaml").read_text()


def test_the_working_directory_is_a_folder_as_others(init: Init) -> None:
    """Its sources are called as its files, below it."""
    write_jsonl(Path("code"), [2])
    write_tars(Path("tiles"), [2])
    found = {source["name"]: source["params"]["path"] for source in init(".")}
    assert found == {"code": "./code", "tiles": "./tiles"}


def test_a_sidecar_without_lines_has_no_fields(init: Init) -> None:
    """As none."""
    write_tars(Path("tars"), [2], sidecars=False)
    Path("tars/00000.meta.jsonl").touch()
    assert init("tars")[0]["params"] == {"path": "tars"}


def test_tars_without_sidecars_have_no_meta_names(init: Init) -> None:
    """Nor have those of which only some have one."""
    write_tars(Path("tars"), [2, 2], sidecars=False)
    assert init("tars")[0]["params"] == {"path": "tars"}
    Path("tars/00000.meta.jsonl").write_text('{"key": "r00000", "score": 1}\n')
    Path("recipe.yaml").unlink()
    assert init("tars")[0]["params"] == {"path": "tars"}


def test_folders_of_classes_are_a_source_of_images(init: Init) -> None:
    """With the fields of the first as a comment."""
    for number, kind in enumerate(["cat", "dog", "cat"]):
        Path("pets", kind).mkdir(parents=True, exist_ok=True)
        Path("pets", kind, f"{number}.jpg").write_bytes(jpeg(number))
    (source,) = init("pets")
    assert (source["target"], source["params"]) == ("streamdata.ImageFolderDataset", {"path": "pets"})
    assert source["sample"]["class_name"] in ("cat", "dog")
    assert "class_name (str).\n" in Path("recipe.yaml").read_text()


ROWS = {
    "messages": ({"messages": TURNS}, "SFTChatDataset", "language-modeling"),
    "completion": ({"prompt": "a", "completion": "b"}, "SFTChatDataset", "prompt-completion"),
    "sharegpt": ({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
                 "SFTChatDataset", "sharegpt"),
    "alpaca": ({"instruction": "a", "output": "b"}, "SFTChatDataset", "alpaca"),
    "pair": ({"prompt": "a", "chosen": "b", "rejected": "c"}, "PreferenceDataset", "preference"),
    "label": ({"prompt": "a", "completion": "b", "label": True}, "PreferenceDataset", "unpaired-preference"),
    "prompt": ({"prompt": TURNS[:1]}, "RLHFDataset", "prompt-only"),
}  # fmt: skip


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize("kind", ROWS)
def test_rows_of_a_known_format_become_tensors(init: Init, kind: str, suffix: str) -> None:
    """Conversations, pairs and prompts, by a tokenizer that is a variable; as a guess."""
    row, target, name = ROWS[kind]
    write_rows(f"{kind}.jsonl", row, row)
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist([row, row]), f"{kind}.parquet")
    (source,) = init(f"{kind}{suffix}")
    assert source["target"] == f"streamdata.{target}"
    assert source["params"]["config"] == {"format": name}
    assert source["sample"].keys() & {"input_ids", "chosen_input_ids"}
    assert f"# A guess: {name}, " in Path("recipe.yaml").read_text()


def test_rows_that_fit_two_formats_say_so(init: Init) -> None:
    """The recipe names one of them."""
    write_rows("a.jsonl", {"instruction": "a", "output": "b", "messages": TURNS})
    assert init("a.jsonl")[0]["params"]["config"] == {"format": "language-modeling"}
    assert "language-modeling, conversational or alpaca" in " ".join(Path("recipe.yaml").read_text().split())


@pytest.mark.parametrize("storage_type", ["bin", "h5", "megatron"])
def test_a_store_is_a_source_of_windows(init: Init, storage_type: str) -> None:
    """Of its train type; windows are not longer than half of what it has."""
    with StoreWriter(storage_type, "store", {"sequence": "uint16"}) as writer:
        writer.append({"sequence": range(300)})
    (source,) = init("store")
    assert source["params"] == {"train_type": "seq", "load_path": "store", "window_size": 128}
    assert source["sample"]["input_ids"].shape == (128,)


@pytest.mark.parametrize(
    ("train_type", "keys"),
    [
        ("sft", {"sequence": "uint16", "loss_mask": "bool"}),
        ("dpo", {"chosen": "uint16", "chosen_mask": "bool", "rejected": "uint16", "rejected_mask": "bool"}),
    ],
)
def test_the_train_type_is_guessed_from_the_arrays(init: Init, train_type: str, keys: dict[str, str]) -> None:
    """What needs more of them is what they were written for."""
    with StoreWriter("h5", "store", keys) as writer:
        writer.append({key: np.ones(9, dtype) for key, dtype in keys.items()})
    assert init("store")[0]["params"]["train_type"] == train_type
    assert ("# A guess: it is for sft; it serves seq, too." in Path("recipe.yaml").read_text()) == (train_type == "sft")


@pytest.mark.parametrize("name", ["tokens.bin", "tokens.npy"])
def test_bare_tokens_are_a_store(init: Init, name: str) -> None:
    """Their dtype is a guess where the file does not say it."""
    tokens = np.arange(50, dtype=np.uint16)
    np.save(name, tokens) if name.endswith(".npy") else tokens.tofile(name)
    assert init(name)[0]["params"]["load_path"] == name
    assert "# A guess, where the file does not say it: tokens of uint16." in Path("recipe.yaml").read_text()


def test_pairs_of_other_names_are_stores_of_their_own(streamdata: Streamdata, init: Init) -> None:
    """Each by what both of its files have in common, as it says where their folder is named."""
    Path("corpora").mkdir()
    for name in ("books", "code"):
        write_pairs(f"corpora/{name}")
    assert "got 2 names: books, code" in streamdata("init", "corpora").stderr
    assert [source["name"] for source in init("corpora/books", "corpora/code")] == ["books", "code"]


@pytest.mark.parametrize("root", ["all", "all/", "../here2/all", "/"])
def test_a_folder_of_several_data_sets_is_several_sources(init: Init, tmp_path: Path, root: str) -> None:
    """Of kinds, and of names that differ in more than digits; settings and notes are none."""
    here = tmp_path / "here2"  # whose digits are no number of a shard
    here.mkdir()
    os.chdir(here)
    root = str(here / "all") if root == "/" else root
    write_jsonl(Path("all/code"), [2, 2])
    write_jsonl(Path("all/docs/v2"), [2])
    write_tars(Path("all/tiles"), [2])
    write_rows("all/train-00000-of-00002.jsonl", {"a": 1})
    write_rows("all/train-00001-of-00002.jsonl", {"a": 2})
    write_rows("all/test-00000-of-00001.jsonl", {"a": 3})
    Path("all/config.json").write_text('{"a": 1}')
    Path("all/README.md").write_text("A text.")
    found = {source["name"]: source["params"]["path"] for source in init(root)}
    assert {name: path.replace(f"{root.rstrip('/')}/", "all/") for name, path in found.items()} == {
        "code": "all/code",
        "docs_v2": "all/docs/v2",
        "tiles": "all/tiles",
        "train": "all/train-*-of-*.jsonl",
        "test": "all/test-00000-of-00001.jsonl",
    }


def test_what_save_to_disk_wrote_is_a_source_for_each_split(init: Init) -> None:
    """Without the caches that lie beside its files."""
    for split in ("train", "test"):
        folder = Path("saved", split)
        folder.mkdir(parents=True)
        for name in ("data-00000-of-00001.arrow", "cache-1.arrow"):
            table = pa.table({"text": [f"{split} {name}"]})
            with pa.ipc.new_stream(str(folder / name), table.schema) as writer:
                writer.write(table)
        notes = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}
        (folder / "state.json").write_text(json.dumps(notes))
    found = {source["name"]: source["params"]["path"] for source in init("saved/train", "saved/test")}
    assert found == {"train": "saved/train", "test": "saved/test"}


def test_files_of_very_many_names_are_one_source(init: Init) -> None:
    """Such as hashes; beside other kinds they are a list."""
    for name in "abcdefghijklmnop":
        write_rows(f"web/{name * 3}.jsonl", {"a": 1})
    assert [source["params"]["path"] for source in init("web")] == ["web"]


def test_each_path_is_a_source_with_a_name_of_its_own(init: Init) -> None:
    """Whatever characters they have; relative paths stay, globs and absolute ones, too."""
    write_jsonl(Path("a b.c"), [2])
    write_jsonl(Path("x/web"), [2])
    write_jsonl(Path("y/web"), [2])
    paths = ["a b.c", "x/web", "./y/web", "x/web/*.jsonl", str(Path("x").absolute())]
    found = init(*paths)
    assert [source["params"]["path"] for source in found] == [*paths[:-1], f"{paths[-1]}/web"]
    assert [source["name"] for source in found] == ["a_b", "web", "web_2", "web_3", "web_4"]


def test_urls_are_taken_as_they_are(streamdata: Streamdata) -> None:
    """By how they end; nothing is asked."""
    done = streamdata("init", "s3://bucket/web/{000..010}.tar", "https://host/a.parquet")
    assert done.exit_code == 0, done.stderr
    found = yaml.safe_load(Path("recipe.yaml").read_text())["params"]["datasets"]
    assert [(source["name"], source["target"].rpartition(".")[2]) for source in found] == [
        ("web", "MetaDistributedWebDataset"),
        ("a", "ParquetDataset"),
    ]


def test_hostile_names_steer_neither_a_terminal_nor_the_recipe(init: Init) -> None:
    """Of files, and of fields: line ends of any kind would end a comment."""
    evil = "a\x1b[31m\n\u2028target: x"
    write_rows(f"web/{evil}.jsonl", {evil: evil, "b": 1})
    (source,) = init("web")
    assert source["sample"]["b"] == 1
    assert "\x1b" not in Path("recipe.yaml").read_text()


def test_nothing_is_written_over(streamdata: Streamdata) -> None:
    """A recipe that is there is an error of usage; another name is taken."""
    write_jsonl(Path("web"), [2])
    Path("recipe.yaml").write_text("mine")
    done = streamdata("init", "web")
    assert (done.exit_code, Path("recipe.yaml").read_text()) == (2, "mine")
    assert "'recipe.yaml'" in done.stderr
    assert streamdata("init", "web", "-o", "other.yaml").exit_code == 0
    assert Path("other.yaml").exists()


def test_all_that_is_wrong_is_said_at_once_and_nothing_is_written(streamdata: Streamdata) -> None:
    """Of each path what was expected, and found."""
    write_jsonl(Path("web"), [2])
    Path("empty").mkdir()
    Path("empty.jsonl").touch()
    Path("broken.jsonl").write_text("{]\n")
    pq.write_table(pa.table({"a": []}), "rowless.parquet")
    Path("text.txt").write_text("a")
    Path("photos").mkdir()
    Path("photos/1.jpg").write_bytes(jpeg(1))
    Path("torn.parquet").write_bytes(b"PAR1")
    paths = ["web", "gone", "empty", "empty.jsonl", "broken.jsonl", "text.txt", "photos", "torn.parquet", "s3://b/web"]
    paths += ["rowless.parquet"]
    done = streamdata("init", *paths)
    assert (done.exit_code, Path("recipe.yaml").exists()) == (1, False)
    errors = done.stderr.split("error: ")[1:]
    found = ["nothing there", "got none", "expected a record", "broken.jsonl:1:", "got none", "1 outside of them"]
    assert len(errors) == len(paths) - 1
    for path, said, error in zip(
        paths[1:], [*found, "read in its footer", "name its shards, such as", "a record"], errors, strict=True
    ):
        assert path in error
        assert said in error


def test_a_recipe_that_does_not_check_is_not_written(streamdata: Streamdata) -> None:
    """What `check` would say is said at once."""
    write_jsonl(Path("a${b}"), [2])
    done = streamdata("init", "a${b}")
    assert (done.exit_code, Path("recipe.yaml").exists()) == (1, False)
    assert "params.datasets[0].params.path" in done.stderr

"""What holds for README and site beside their blocks."""

import re
import runpy
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from typer.testing import CliRunner

import streamdata
from streamdata import MergedDataset, errors, instantiate_from_yaml
from streamdata.chats.chat_dataset import PreferenceConfig, SFTChatConfig
from streamdata.chats.settings import PromptConfig, RowSettings
from streamdata.recipe.check import check_recipe
from streamdata.recipe.targets import TARGETS, import_target
from streamdata.states.table import OPTIONAL, RARE, REQUIRED
from streamdata.tools.cli.main import app
from tests.docs.pages import PAGES, ROOT, blocks_of, matches, run_command
from tests.io.servers import s3_server
from tests.streams import Numbers, assert_exact_resume

GENERATED = runpy.run_path(str(ROOT / "docs" / "generated.py"))
DRAWN = runpy.run_path(str(ROOT / "docs" / "drawings.py"))
FIGURES = ROOT / "docs" / "figures.md"
"""The table of `how-fast.md`, as `make bench` writes it."""
GUIDES = sorted((ROOT / "docs" / "guides").rglob("*.md"))
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def block(page: str, title: str) -> str:
    """The file of that title on a page."""
    return next(block.text for block in blocks_of(ROOT / page) if block.title == title)


def test_front_page_is_short() -> None:
    """1,200 words, code and tables included."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 1200


def test_a_guide_is_one_task() -> None:
    """At most 900 words, without the files that it includes."""
    words = {str(guide): len(guide.read_text(encoding="utf-8").split()) for guide in GUIDES}
    assert words
    assert {guide: count for guide, count in words.items() if count > 900} == {}


def test_how_do_i_answers_in_a_line() -> None:
    """Each task has a link and at most 15 words."""
    text = (ROOT / "docs/how-do-i.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| [")]
    assert len(rows) >= 60
    assert [row for row in rows if len(row) != 2 or "](" not in row[0] or len(row[1].split()) > 15] == []


def test_errors_that_are_explained_are_raised() -> None:
    """What a line of the guide begins with stands in a message: `…` is what differs. Each class is named."""
    guide = (ROOT / "docs/guides/errors.md").read_text(encoding="utf-8")
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "streamdata").rglob("*.py"))
    messages = re.sub(r"[\"']\n\s*f?[\"']", "", code)  # literals on several lines are one
    for line in re.findall(r"^- (`.*?):", guide, re.MULTILINE):
        for words in re.findall(r"`([^`]+)`", line):
            assert re.search(".{0,200}?".join(map(re.escape, words.split("…"))), messages), words
    own = [name for name in vars(errors) if name.endswith("Error")]
    assert all(f"`{name}`" in guide or f"{name}s" in guide for name in own)


def test_formats_name_every_field_of_a_cursor() -> None:
    """In their table, and no others."""
    text = (ROOT / "docs/reference/formats.md").read_text(encoding="utf-8")
    table = text.partition("\nA cursor has")[2].partition("\n\n|")[2].partition("\n\n")[0]
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    named = re.findall(r"`(\w+)`", " ".join(cells))
    assert sorted(named) == sorted([*REQUIRED, *OPTIONAL, *RARE, "pulled"])


def test_links_lead_to_files() -> None:
    """Of those within the repository; MkDocs looks for the headings that they name."""
    links = [
        (page, link.partition("#")[0])
        for page in PAGES
        for link in _LINK.findall(re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL))
        if not link.startswith(("http", "#"))
    ]
    assert links
    assert [(str(page), link) for page, link in links if not (page.parent / link).exists()] == []


def test_every_include_is_resolved() -> None:
    """A formatter that takes a marker in a block of Python for code leaves one that MkDocs prints as it is."""
    marker = re.compile(r"^\s*-+ ?8 ?<", re.MULTILINE)
    assert [(str(page), block.line) for page in PAGES for block in blocks_of(page) if marker.search(block.text)] == []


def test_every_page_is_in_the_navigation() -> None:
    """And each once."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r"- (?:[\w ]+: )?([\w/-]+\.md)$", text, re.MULTILINE)
    tables = (FIGURES, FIGURES.with_name("profiles.md"))
    assert sorted(listed) == sorted(str(page.relative_to(ROOT / "docs")) for page in PAGES[1:] if page not in tables)
    assert yaml.safe_load(text.partition("theme:")[0])["strict"] is True
    builds = re.findall(r"mkdocs build (.*?)[;\n]", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert builds == ["--strict"] * 2, "with -q it counts no warning, so that no link would be checked"


def test_reference_has_every_public_name() -> None:
    """Once, in the groups of the package's own list."""
    names = [name for _, group in GENERATED["groups"]() for name in group]
    assert sorted(names) == sorted(streamdata.__all__)
    assert all(f"::: streamdata.{name}\n" in GENERATED["api"]() for name in names)


def test_reference_has_every_target_with_its_keys() -> None:
    """Each with a table; a required key is called so."""
    text = GENERATED["recipe_keys"]()
    assert all(f"\ntarget: {name}\n" in f"{text}\n" for name in TARGETS)
    assert "| `path` | `str | Sequence[str]` | required |" in text
    assert "| `cost` | `function | str | None` | `None` |" in text
    assert "| `process_fn` | `function | list of functions | None` | `None` |" in text


def test_reference_says_what_every_key_means() -> None:
    """Also of classes that have the arguments of their base, and of settings; `**options` is no key."""
    text = GENERATED["recipe_keys"]()
    rows = [line for line in text.splitlines() if line.startswith(("| `", "| further"))]
    assert len(rows) > 300
    assert [row for row in rows if row.endswith("|  |")] == []
    assert text.count("\n| `stride` | `int | None` | `None` | Tokens from one window to the next; `window_size`") >= 3
    assert "\n| further keys | | | Those of the train type's class, `SeqDataset`" in text
    assert "| `options` |" not in text
    assert "| `filter_overlong_prompts_workers` | `int` |  | Processes" in text, "its default is of the machine"


@pytest.mark.parametrize("settings", [PromptConfig, PreferenceConfig, SFTChatConfig])
def test_reference_has_the_keys_of_settings(settings: type[RowSettings]) -> None:
    """In a table of their own, which is linked where a source names them."""
    name = settings.__name__
    table = GENERATED["recipe_keys"]().partition(f"\n### {name}\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` ", table, re.MULTILINE) == [*settings.model_fields]
    page = SimpleNamespace(file=SimpleNamespace(src_uri="reference/api.md"))
    linked = GENERATED["on_post_page"](f"the keys of <code>{name}</code>.", page)
    assert linked == f'the keys of <a href="recipe.html#{name.lower()}"><code>{name}</code></a>.'


def test_names_that_the_reference_points_to_are_in_it() -> None:
    """Whatever a docstring of it says to see has an entry, is beside it or among its arguments, or is a page."""
    shown = {**dict(GENERATED["docstrings"]()), "recipe keys": GENERATED["recipe_keys"]()}
    lost = []
    for path, text in shown.items():
        owner = path.rpartition(".")[0]
        beside = set(re.findall(r"^ {4}\*{0,2}(\w+): ", f"{text}\n{shown.get(owner, '')}", re.MULTILINE))
        for names in re.findall(r"\b[Ss]ee\s+((?:`[^`]+`(?:, | and | or )?)+)", text):
            for name in re.findall(r"`([^`]+)`", names):
                is_member = {f"{path}.{name}", f"{owner}.{name}"} & shown.keys()
                is_known = name in beside or is_member or name in GENERATED["entries"]()
                if not is_known and not (name.startswith("docs/") and (ROOT / name).is_file()):
                    lost.append(f"{path}: {name}")
    assert lost == []


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_examples_of_the_reference_are_sound(name: str) -> None:
    """Each key that a target needs has a value of its type."""
    example = yaml.safe_load(GENERATED["example"](name, import_target(name)))
    assert [str(problem) for problem in check_recipe(example)] == []


def test_reference_has_every_environment_variable() -> None:
    """Of the package's own."""
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "streamdata").rglob("*.py"))
    table = (ROOT / "docs/reference/commands.md").read_text(encoding="utf-8")
    named = set(re.findall(r"STREAMDATA_[A-Z_]+", code))
    assert named
    assert named == set(re.findall(r"^\| `(STREAMDATA_[A-Z_]+)`", table, re.MULTILINE))


def test_reference_has_every_command() -> None:
    """As its help shows it, within 80 columns."""
    text = GENERATED["commands"]()
    assert {"## streamdata check", "## streamdata plan", "## streamdata prepare merge"} <= set(text.splitlines())
    usages = re.findall(r"^ *Usage: (streamdata(?: \w+)*) [\[{]", text, re.MULTILINE)
    assert usages == re.findall(r"^## (.+)", text, re.MULTILINE)
    assert max(map(len, text.splitlines())) <= 80


def test_bars_show_each_peer_that_is_ahead() -> None:
    """All rows that the table lists as such, and no others."""
    listed = re.findall(r"^- .*: (\w+) ([\d.]+) \(", FIGURES.read_text(encoding="utf-8"), re.MULTILINE)
    behind = [(peer, best) for _, peer, best, *_ in DRAWN["peer_ratios"]() if best < 1]
    assert sorted(behind) == sorted((peer, float(best)) for peer, best in listed)
    assert DRAWN["peers"]().count("#e8833a") == len(behind)


STORES = "docs/guides/object-stores.md"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """The bucket of the guide, for whoever has the keys of the environment, which a process keeps.

    The working directory has its files, and the recipe.
    """
    folder = tmp_path_factory.mktemp("store")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, value in {"CACHE": str(folder / "indexes"), "DATA_CACHE": ""}.items():
            patch.setenv(f"STREAMDATA_{name}", value)
        for title in ("write.py", "store.yaml"):
            Path(title).write_text(block(STORES, title), encoding="utf-8")
        runpy.run_path("write.py")
        for options in ([], ["--check"]):
            assert CliRunner().invoke(app, ["index", "web", *options]).exit_code == 0
        files = {f"my-bucket/web/{path.name}": path.read_bytes() for path in Path("web").iterdir()}
        with s3_server(files) as server:
            server.secret = "b"
            for name, value in {"ENDPOINT_URL": server.url, "ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b"}.items():
                patch.setenv(f"AWS_{name}", value)
            yield server


def test_shards_of_the_guide_are_read_from_a_store(store, tmp_path) -> None:
    """Requests for the manifest, which is a copy, and for a list; then ranges. The cache lies where the recipe says."""
    before = len(store.log)
    dataset = instantiate_from_yaml("store.yaml", variables={"disk": str(tmp_path / "pages")})
    assert [request.path for request in store.log[before:]] == ["my-bucket/web/streamdata.manifest", "my-bucket/"]
    samples = list(islice(dataset, 1000))
    assert {sample["score"] for sample in samples} == {n / 10 for n in range(1000)}
    assert {request.method for request in store.log[before:]} == {"GET"}
    assert list((tmp_path / "pages").iterdir())


def test_keys_and_addresses_are_tried_as_the_guide_says(store, tmp_path) -> None:
    """Each command gives the output beside it; keys that the store refuses are an error that says so."""
    recipe = f"store.yaml --var disk={tmp_path / 'pages'}"
    shown = next(b.text for b in blocks_of(ROOT / STORES) if b.text.startswith("$ streamdata show store.yaml"))
    for part in shown.removeprefix("$ ").split("\n$ "):
        command, _, expected = part.partition("\n")
        status, output = run_command(command.replace("store.yaml", recipe))
        assert status == 0, output
        assert matches(expected, output), output
    store.secret = "another"
    status, output = run_command(f"streamdata show {recipe} -n 1")
    store.secret = "b"
    assert status == 1
    assert "credentials expired or no permission" in " ".join(output.split())


def test_packer_of_the_guide_resumes_exactly(tmp_path) -> None:
    """After each row, and one function for all iterations; no id is lost."""
    (tmp_path / "packer.py").write_text(block("docs/guides/packing.md", "packer.py"), encoding="utf-8")
    packer = runpy.run_path(str(tmp_path / "packer.py"))["Packer"](7)

    def with_ids(record):
        return {"ids": [record["value"]] * (record["value"] % 5)}

    def make(**options):
        return MergedDataset([Numbers("a", 11, single_process_fn=with_ids, process_fn=packer)], **options)

    assert_exact_resume(make)
    rows = [sample["ids"] for sample in make(cyclic=False)]
    assert sorted(i for ids in rows for i in ids) == sorted(i for i in range(11) for _ in range(i % 5))


@pytest.mark.parametrize(
    ("trained", "last"),
    [
        ("..ab..cd", "......cd"),
        ("..ab..cd..", "......cd.."),  # padded, or a tool's answer is last
        ("ab..cd", "....cd"),  # cut in an answer
        ("ab", "ab"),
        (".a.", ".a."),
        ("a..b", "...b"),
    ],
)
def test_last_answer_of_the_guide(trained, last) -> None:
    """It keeps the last run of trained tokens, wherever the sample begins and ends."""
    functions = {}
    exec(block("docs/guides/chats.md", "last.py"), functions)  # noqa: S102  (our own page)
    mask = functions["last_answer"]({"loss_mask": torch.tensor([token != "." for token in trained])})["loss_mask"]
    assert mask.tolist() == [token != "." for token in last]


@pytest.mark.long
def test_packed_chats_of_the_guide_are_trained_apart(tmp_path, demo_data, monkeypatch) -> None:
    """A model of transformers sees by `position_ids` where a chat begins: its loss is that of each chat by itself."""
    transformers = pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "demo_data").symlink_to(demo_data)
    guide = "docs/guides/chats.md"
    for title in ("make_chats.py", "labels.py", "packed_chats.yaml", "packed_batch.py"):
        Path(title).write_text(block(guide, title), encoding="utf-8")
    runpy.run_path("make_chats.py")
    batch = runpy.run_path("packed_batch.py")["batch"]
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    vocabulary = int(batch["input_ids"].max()) + 1
    # Large weights: of small ones a loss hardly depends on what else a token attends to.
    config = transformers.LlamaConfig(vocab_size=vocabulary, initializer_range=1.0, use_cache=False, **sizes)
    model = transformers.LlamaForCausalLM(config)
    total = count = 0.0
    with torch.no_grad():
        for ids, labels, positions in zip(batch["input_ids"], batch["labels"], batch["position_ids"], strict=True):
            begins = (positions == 0).nonzero().flatten()[1:].tolist()
            for chat, own in zip(ids.tensor_split(begins), labels.tensor_split(begins), strict=True):
                if trained := int((own[1:] != -100).sum()):  # padding has none
                    total += trained * float(model(input_ids=chat[None], labels=own[None]).loss)
                    count += trained
        assert count > 150
        assert float(model(**batch).loss) == pytest.approx(total / count, rel=1e-4)
        for leak in ({"use_cache": True}, {"attention_mask": torch.ones_like(batch["input_ids"])}):
            assert float(model(**batch, **leak).loss) != pytest.approx(total / count, rel=1e-3)

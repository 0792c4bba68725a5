"""What the README shows, runs."""

import re
import runpy
import shlex
from itertools import islice
from pathlib import Path

import pytest
from typer.testing import CliRunner

from streamdata import MergedDataset, instantiate_from_yaml, load_states
from streamdata.recipe.check import check_recipe
from streamdata.tools.cli.main import app
from tests.io.servers import s3_server
from tests.ranks import apart
from tests.streams import Numbers, assert_exact_resume

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


FINITE = """
target: streamdata.MergedDataset
params:
  cyclic: false
  datasets:
    - target: streamdata.ImageJsonlDataset
      params: {jsonl_path: "${variables:data}/crops.jsonl"}
      name: crops
      percent: 1
"""


BEFORE, STORES, AFTER = re.split(r"## Shards in object stores\n|(?=## Tokens)", README)


def blocks(language, text=BEFORE + AFTER):
    """The fenced blocks of a language."""
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def commands(text=BEFORE + AFTER):
    """The arguments of each of our commands in the console blocks."""
    lines = [line for block in blocks("console", text) for line in block.splitlines()]
    return [shlex.split(line[2:], comments=True)[1:] for line in lines if line.startswith("$ streamdata")]


def written(name, code):
    """A script with this code."""
    path = Path(name)
    path.write_text(code)
    return path


@pytest.fixture(scope="module")
def workplace(tmp_path_factory, demo_data):
    """A folder with the recipes and the demo's data, as after `make demo`."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "demo_data").symlink_to(demo_data)
    (folder / "configs").symlink_to(ROOT / "configs")
    return folder


def run_script(code):
    """In a process of its own, which need not import torch anew."""
    apart(runpy.run_path, str(written("loop.py", code)))


@pytest.fixture(scope="module")
def trained(workplace):
    """The same folder, after the training loop has run in it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(workplace)
        run_script(blocks("python")[0])
    return workplace


def test_the_training_loop_resumes(trained, monkeypatch):
    """From its checkpoints, in another process; and the loop over epochs after it."""
    monkeypatch.chdir(trained)
    code, epochs, *_ = blocks("python")
    loop = code.replace("loader, 50)", "loader, 10)")
    assert loop != code
    finite = code.replace("configs/gpt.yaml", "finite.yaml").split("for step, batch in")[0]
    Path("finite.yaml").write_text(FINITE)
    assert load_states("checkpoints").step == 50
    run_script(loop + finite.replace('"checkpoints"', '"none"') + epochs)
    assert load_states("checkpoints").step == 60


def test_the_recipe_and_the_commands_work(trained, monkeypatch):
    """The recipe checks; each command of the console blocks ends well; what `prepare` wrote becomes a batch."""
    monkeypatch.chdir(trained)
    (recipe,) = blocks("yaml")
    Path("recipe.yaml").write_text(recipe)
    assert not [p for p in check_recipe("recipe.yaml", variables={"data": "demo_data"}) if p.kind == "error"]
    assert len(commands()) == 19
    shorter = {"run": ["--batches", "5"], "profile": ["--seconds", "1", "--workers", "0"]}
    for command in commands():
        result = CliRunner().invoke(app, [*command, *shorter.get(command[0], [])])
        assert result.exit_code == 0, result.output
    assert '"draws"' in Path("states.json").read_text()
    _, _, serving, code, _ = blocks("python")
    Path("serve.py").write_text(serving.replace("9100", "0"))
    apart(runpy.run_path, "serve.py")
    assert runpy.run_path(str(written("tokens.py", code)))["batch"]["target_ids"].shape == (8, 1024)


def test_shards_are_written_indexed_and_read_from_a_store(tmp_path, monkeypatch):
    """One request for the manifest, which is a copy, and then ranges; the cache lies where the recipe says."""
    monkeypatch.chdir(tmp_path)
    for name, value in {"CACHE": str(tmp_path / "indexes"), "DATA_CACHE": ""}.items():
        monkeypatch.setenv(f"STREAMDATA_{name}", value)
    (code,), (recipe,) = blocks("python", STORES), blocks("yaml", STORES)
    runpy.run_path(str(written("write.py", code)))
    assert len(list(Path("web").glob("*.tar"))) == 3
    for command in commands(STORES):
        assert CliRunner().invoke(app, command).exit_code == 0
    files = {f"my-bucket/web/{path.name}": path.read_bytes() for path in Path("web").iterdir()}
    with s3_server(files) as server:
        for name, value in {"S3_ENDPOINT": server.url, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}.items():
            monkeypatch.setenv(name, value)
        dataset = instantiate_from_yaml(written("stores.yaml", recipe), variables={"disk": str(tmp_path)})
        assert [request.path for request in server.log] == ["my-bucket/web/streamdata.manifest"]
        samples = list(islice(dataset, 1000))
    assert {sample["score"] for sample in samples} == {n / 10 for n in range(1000)}
    assert {request.method for request in server.log} == {"GET"}
    assert list((tmp_path / "pages").iterdir())


def test_the_packer_resumes_exactly(tmp_path):
    """After each row, and one function for all iterations; no id is lost."""
    *_, code = blocks("python")
    packer = runpy.run_path(str(written(tmp_path / "packer.py", code)))["Packer"](7)

    def with_ids(record):
        return {"ids": [record["value"]] * (record["value"] % 5)}

    def make(**options):
        return MergedDataset([Numbers("a", 11, single_process_fn=with_ids, process_fn=packer)], **options)

    assert_exact_resume(make)
    rows = [sample["ids"] for sample in make(cyclic=False)]
    assert sorted(i for ids in rows for i in ids) == sorted(i for i in range(11) for _ in range(i % 5))


def test_the_demo_runs(workplace, capsys, monkeypatch, caplog):
    """A short one: the tree, the shares, and an exact resume; no warning of a function that only looks on."""
    demo = runpy.run_path(str(ROOT / "examples" / "demo.py"))
    monkeypatch.setitem(demo["main"].__globals__, "NUM_BATCHES", 12)
    monkeypatch.setitem(demo["main"].__globals__, "STOP_AFTER", 5)
    demo["main"](str(workplace / "demo_data"))
    output = capsys.readouterr().out
    assert "still has something" not in caplog.text
    assert re.search(r"├─ tiles +0.4 +40 % +40 % +[\d,]+ +[\d,]+  MetaDistributedWebDataset, \d+ shards", output)
    assert re.search(r"12 batches, [\d,]+ samples/s, two workers", output)
    assert "resumed: 7 of 7 remaining batches equal" in output
    assert re.search(r"docs +30 % +(29|30|31)(\.\d)? %", output)

"""Checks what `make dist` built: `python -m tests.dist dist [--extras [NAME…]]`.

The wheel goes into an empty environment, without the repository beside it: it imports, its command answers, a first
recipe gives samples, and mypy sees its types. With `--extras` each extra is also installed alone, with the pinned build
of torch for CPUs, and does one thing that needs it. That takes half an hour and 3 GB at a time.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.io.servers import http_server, s3_server
from tests.text.tiny_tokenizer import save_tiny_tokenizer

ROOT = Path(__file__).parents[1]
_ALONE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
_FIRST_RECIPE = """
from itertools import islice
from pathlib import Path
from streamdata import StreamLoader, instantiate_from_yaml, mixed_collate
Path("rows.jsonl").write_text("".join(f'{{"n": {n}}}\\n' for n in range(100)))
Path("recipe.yaml").write_text('''
target: streamdata.MergedDataset
params:
  datasets:
    - {target: streamdata.JsonlIterableDataset, params: {path: rows.jsonl}, name: rows, percent: 1}
''')
loader = StreamLoader(instantiate_from_yaml("recipe.yaml"), batch_size=4, collate=mixed_collate)
assert len({sample["n"] for batch in islice(loader, 25) for sample in batch}) == 100
"""
_TYPED = "from streamdata import report\nreveal_type(report)\n"
_FOR_EACH = """
import os, subprocess, sys
from streamdata import JsonlIterableDataset, MergedDataset, ParquetDataset, StreamLoader, mixed_collate, named

def numbers(dataset):
    return sorted(sample["n"] for sample in MergedDataset([named(dataset, name="rows", percent=1)], cyclic=False))

def stored(url, **options):
    assert numbers(JsonlIterableDataset(url, storage_options=options or None)) == [0, 1, 2]

def prepare(*options):
    words = ["prepare", "texts.jsonl", "-o", "tokens", "-c", "pretrain", "--tokenizer", "tokenizer", *options]
    subprocess.run([sys.executable, "-m", "streamdata", *words], check=True)
"""
"""What the uses have in common. They run in a folder with `rows.jsonl`, `texts.jsonl` and a `tokenizer`."""
_USES = {
    "azure": """
os.environ["AZURE_STORAGE_ACCOUNT_NAME"] = "account"
stored("az://bucket/rows.jsonl", endpoint=sys.argv[1], anonymous=True)
""",
    "gcs": 'stored("gs://bucket/rows.jsonl", endpoint=sys.argv[1], anonymous=True)',
    "http": 'stored(sys.argv[1] + "/bucket/rows.jsonl")',
    "s3": """
os.environ |= {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}  # requests are signed, which needs botocore
stored("s3://bucket/rows.jsonl", endpoint=sys.argv[2])
""",
    "fast": """
from streamdata import BlendableDataset
from pathlib import Path
blend = BlendableDataset([range(3), range(5)], [3, 1], size=1 << 20, compat="megatron")
assert (blend.dataset_index[:4] == 0).sum() == 3
import numba  # which the blend was compiled by, or would have warned
config = "{train_type: seq, sections: [{field: text, action: train}], backend: gigatoken}"
Path("fast.yaml").write_text(config)
prepare("-c", "fast.yaml")
""",
    "jpeg": """
import io
from PIL import Image
from streamdata import ImageTextPairProcessFnBuilder
Image.new("RGB", (64, 48)).save(file := io.BytesIO(), "jpeg")
builder = ImageTextPairProcessFnBuilder(32, 8, "tokenizer", backend="simplejpeg")
assert next(builder([{"jpg": file.getvalue(), "txt": b"the cat"}]))["img"].shape == (3, 32, 32)
""",
    "lightning": """
import torch
from lightning.pytorch import LightningModule, Trainer
from streamdata.compat import StreamDataModule

class Learner(LightningModule):
    layer = torch.nn.Linear(1, 1)
    def training_step(self, batch, index):
        return self.layer(batch["n"].float()[:, None]).sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.layer.parameters())

dataset = MergedDataset([named(JsonlIterableDataset("rows.jsonl"), name="rows", percent=1)])
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
trainer = Trainer(accelerator="cpu", max_steps=2, **quiet)
trainer.fit(Learner(), datamodule=StreamDataModule(StreamLoader(dataset, 3)))
assert trainer.global_step == 2
""",
    "metrics": """
from streamdata import metrics
dataset = MergedDataset([named(JsonlIterableDataset("rows.jsonl"), name="rows", percent=1)])
assert "# TYPE" in metrics(StreamLoader(dataset, 1, collate=mixed_collate))
""",
    "parquet": """
import pyarrow as pa, pyarrow.parquet
pa.parquet.write_table(pa.table({"n": [0, 1, 2]}), "rows.parquet")
assert numbers(ParquetDataset("rows.parquet")) == [0, 1, 2]
""",
    "ray": 'prepare("--engine", "ray")',
    "video": """
import av, io
import numpy as np
from streamdata.chats.media import decode_video
with av.open(file := io.BytesIO(), "w", format="mp4") as container:
    stream = container.add_stream("mpeg4", rate=4)
    stream.width = stream.height = 64
    for grey in range(8):
        container.mux(stream.encode(av.VideoFrame.from_ndarray(np.full((64, 64, 3), 30 * grey, np.uint8))))
    container.mux(stream.encode())
assert len(decode_video(file.getvalue(), {"nframes": 4}, 28)) == 4
""",
    "zstd": """
import zstandard
open("rows.jsonl.zst", "wb").write(zstandard.compress(open("rows.jsonl", "rb").read()))
assert numbers(JsonlIterableDataset("rows.jsonl.zst")) == [0, 1, 2]
""",
    "demo": 'subprocess.run([sys.executable, sys.argv[3] + "/examples/make_demo_data.py", "demo_data"], check=True)',
    "docs": """
words = ["-m", "mkdocs", "build", "--strict", "-d", os.path.abspath("site")]
subprocess.run([sys.executable, "-P", *words], cwd=sys.argv[3], check=True)  # -P: without the repository's modules
""",
}
"""One thing that each extra is for; arguments: a web server, an S3 server, the repository. The others are of those who
change streamdata."""


@contextmanager
def _environment() -> Iterator[tuple[Path, Path]]:
    """An empty environment: its folder to work in, and its Python."""
    with TemporaryDirectory() as folder:
        place = Path(folder)
        subprocess.run([sys.executable, "-m", "venv", str(place / "venv")], check=True)
        yield place, place / "venv" / "bin" / "python"


def _install(python: Path, *wanted: str) -> None:
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    torch = re.search(r"^torch==(.+)$", constraints, re.MULTILINE)
    assert torch, "constraints.txt pins torch"
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    subprocess.run([*pip, f"torch=={torch[1]}+cpu"], check=True)
    subprocess.run([*pip, "-c", str(ROOT / "constraints.txt"), *wanted], check=True)


def _run(place: Path, python: Path, *words: str) -> str:
    done = subprocess.run([str(python), *words], cwd=place, env=_ALONE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def check_wheel(wheel: Path) -> None:
    """Install it alone, and use it.

    Raises:
        AssertionError: Something of it does not work.
    """
    assert wheel.name.endswith("-py3-none-any.whl"), wheel.name
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    ours = {str(path.relative_to(ROOT)) for path in (ROOT / "streamdata").rglob("*") if path.is_file()}
    assert packed == {name for name in ours if not name.endswith(".pyc")}, "the wheel has the files of the package"
    with _environment() as (place, python):
        _install(python, str(wheel), "mypy")
        assert "check" in _run(place, python, "-m", "streamdata", "--help")
        _run(place, python, "-c", _FIRST_RECIPE)
        (place / "typed.py").write_text(_TYPED, encoding="utf-8")
        assert "def (" in _run(place, python, "-m", "mypy", "typed.py")
    print(f"{wheel.name}: imports, answers, reads a first recipe, is typed")


def check_extras(wheel: Path, extras: Sequence[str]) -> None:
    """Install each of the extras alone, and do what it is for, which fails without it.

    Raises:
        AssertionError: One does not work, is not needed, or brings torchvision.
    """
    with _environment() as (place, python):
        _install(python, str(wheel))
        for extra in extras:
            assert _use(extra, place, python).returncode, f"{extra}: what it is for works without it"
    for extra in extras:
        with _environment() as (place, python):
            _install(python, f"{wheel}[{extra}]")
            done = _use(extra, place, python)
            assert done.returncode == 0, f"{extra}: {done.stdout}{done.stderr}"
            installed = json.loads(_run(place, python, "-m", "pip", "list", "--format", "json"))
        names = {package["name"] for package in installed}
        assert "torchvision" not in names, f"{extra} brings torchvision"
        print(f"{extra}: works, {len(names)} packages", flush=True)


def _use(extra: str, place: Path, python: Path) -> "subprocess.CompletedProcess[str]":
    rows = "".join(f'{{"n": {n}}}\n' for n in range(3))
    (place / "rows.jsonl").write_text(rows, encoding="utf-8")
    (place / "texts.jsonl").write_text('{"text": "the cat sat on the mat"}\n' * 100, encoding="utf-8")
    save_tiny_tokenizer(place / "tokenizer")
    objects = {"bucket/rows.jsonl": rows.encode()}
    with http_server(objects) as web, s3_server(objects) as store:
        web.more_headers = {"Last-Modified": "Sun, 22 Nov 2026 08:41:39 GMT"}
        words = [str(python), "-c", _FOR_EACH + _USES[extra], web.url, store.url, str(ROOT)]
        return subprocess.run(words, cwd=place, env=_ALONE, capture_output=True, text=True, check=False)


def main() -> None:
    """Check the newest wheel of a folder."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--extras", nargs="*", choices=_USES, help="these extras alone, too; without a name all")
    wanted = parser.parse_args()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert set(_USES) == set(extras) - {"all", "dev", "test"}, "each extra has what it is for"
    wheel = max(wanted.folder.glob("*.whl"), key=lambda path: path.stat().st_mtime).resolve()
    check_wheel(wheel)
    if wanted.extras is not None:
        check_extras(wheel, wanted.extras or list(_USES))


if __name__ == "__main__":
    main()

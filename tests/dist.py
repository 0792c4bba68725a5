"""Checks what `make dist` built: `python -m tests.dist dist [--extras]`.

The wheel goes into an empty environment, without the repository beside it: it imports, its command answers, a first
recipe gives samples, and mypy sees its types. With `--extras` each extra is installed alone, too, with the pinned build
of torch for CPUs; ray and lightning are large.
"""

import argparse
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
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
_IMPORTS = {
    "azure": "obstore", "gcs": "obstore", "http": "aiohttp", "jpeg": "simplejpeg", "lightning": "lightning",
    "metrics": "prometheus_client", "parquet": "pyarrow", "ray": "ray", "s3": "botocore", "video": "av",
    "zstd": "zstandard", "fast": "numba", "demo": "skimage", "docs": "mkdocs",
}  # fmt: skip
"""What each extra is for; the others are of those who change streamdata."""


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
    done = subprocess.run([str(python), *words], cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def check_wheel(wheel: Path) -> None:
    """Install it alone, and use it.

    Raises:
        AssertionError: Something of it does not work.
    """
    assert wheel.name.endswith("-py3-none-any.whl"), wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    assert "streamdata/py.typed" in names
    assert not [name for name in names if name.startswith(("tests/", "docs/"))]
    with _environment() as (place, python):
        _install(python, str(wheel), "mypy")
        assert "check" in _run(place, python, "-m", "streamdata", "--help")
        _run(place, python, "-c", _FIRST_RECIPE)
        (place / "typed.py").write_text(_TYPED, encoding="utf-8")
        assert "def (" in _run(place, python, "-m", "mypy", "typed.py")
    print(f"{wheel.name}: imports, answers, reads a first recipe, is typed")


def check_extras(wheel: Path) -> None:
    """Install each extra alone.

    Raises:
        AssertionError: What it is for cannot be imported.
    """
    for name, module in _IMPORTS.items():
        with _environment() as (place, python):
            without = ["--no-deps"] if name == "demo" else []  # scikit-image alone: see the Makefile
            _install(python, *without, f"{wheel}[{name}]" if not without else "scikit-image")
            _run(place, python, "-c", f"import importlib.util; assert importlib.util.find_spec({module!r})")
        print(f"{name}: {module} is there")


def main() -> None:
    """Check the newest wheel of a folder."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--extras", action="store_true", help="each extra alone, too")
    wanted = parser.parse_args()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert set(_IMPORTS) == set(extras) - {"all", "dev", "test"}, "each extra has what it is for"
    wheel = max(wanted.folder.glob("*.whl"), key=lambda path: path.stat().st_mtime).resolve()
    check_wheel(wheel)
    if wanted.extras:
        check_extras(wheel)


if __name__ == "__main__":
    main()

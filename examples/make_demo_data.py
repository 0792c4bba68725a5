"""Writes real example data, offline: text, photographs and a tokenizer.

1. sources of this Python's standard library → `code/*.jsonl` (functions and classes), `docs/*.jsonl` (docstrings)
2. photographs in the scikit-image package → `tiles/*.tar` with sidecars, `crops/*.jpg` named by `crops.jsonl`
3. names and docstrings → `prompts.parquet`, questions with their answers
4. the text → `tokenizer/`, byte-level BPE with a chat template
5. functions, classes and docstrings in its tokens → the stores `tokens/code` (bin) and `tokens/docs` (Megatron's)

    python examples/make_demo_data.py [demo_data]

The directory appears whole or not at all. One that this script wrote before, from the same sources, is left as it is.
"""

import ast
import importlib.metadata
import io
import json
import platform
import random
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import webdataset
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from streamdata.stores.dtypes import token_dtype
from streamdata.stores.writer import StoreWriter

Json = dict[str, Any]

PACKAGES = (
    *("argparse", "ast", "asyncio", "collections", "concurrent", "configparser", "csv", "dataclasses", "datetime"),
    *("decimal", "difflib", "email", "enum", "fractions", "ftplib", "functools", "heapq", "html", "http", "imaplib"),
    *(
        "importlib",
        "inspect",
        "ipaddress",
        "json",
        "logging",
        "mailbox",
        "multiprocessing",
        "optparse",
        "os",
        "pathlib",
    ),
    *("pdb", "pickle", "pickletools", "platform", "plistlib", "pydoc", "random", "re", "shutil", "socket", "sqlite3"),
    *("ssl", "statistics", "subprocess", "tarfile", "tempfile", "textwrap", "threading", "tkinter", "tokenize"),
    *("traceback", "turtle", "typing", "unittest", "urllib", "uuid", "wsgiref", "xml", "xmlrpc", "zipfile"),
)
"""Modules and packages of the standard library whose sources become the text."""

PHOTOS = {
    "astronaut.png": "Eileen Collins, astronaut, in an orange suit",
    "brick.png": "a brick wall",
    "camera.png": "a man with a camera on a tripod",
    "chelsea.png": "Chelsea, a ginger cat",
    "coffee.png": "a cup of coffee on a saucer with a spoon",
    "coins.png": "Greek coins from Pompeii",
    "grass.png": "grass",
    "gravel.png": "gravel",
    "hubble_deep_field.jpg": "galaxies in the Hubble Extreme Deep Field",
    "ihc.png": "stained colonic tissue under the microscope",
    "moon.png": "the surface of the Moon",
    "motorcycle_left.png": "a motorcycle in a garage",
    "retina.jpg": "a human retina",
    "rocket.jpg": "a Falcon 9 rocket at launch",
}
"""Photographs of scikit-image, and what is on them."""

TILE, TILE_STRIDE = 96, 48
CROP, CROP_STRIDE = 256, 128
NUM_TILE_SHARDS, NUM_CODE_SHARDS, NUM_DOCS_SHARDS = 4, 8, 4
VOCABULARY_SIZE = 4096
END_OF_TEXT = "<|endoftext|>"
NUM_PROMPTS = 500
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def main(argv: Sequence[str]) -> None:
    """Writes everything to the directory named on the command line, if it is not there."""
    target = Path(argv[0] if argv else "demo_data")
    identity = {"made_by": "make_demo_data 3", "python": platform.python_version(), "photos": photos_version()}
    if read_identity(target) == identity:
        print(f"{target}: complete, left as it is")
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target, so that publishing is a rename on one file system.
    draft = Path(tempfile.mkdtemp(prefix=f"{target.name}.", suffix=".draft", dir=target.parent))
    try:
        counts = write_all(draft)
        (draft / "manifest.json").write_text(json.dumps({**identity, "counts": counts}, indent=2) + "\n")
        publish(draft, target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    print(f"{target}: " + ", ".join(f"{count} {what}" for what, count in counts.items()))


def photos_version() -> str:
    """Returns the version of the package with the photographs, which need not be importable."""
    try:
        return importlib.metadata.version("scikit-image")
    except importlib.metadata.PackageNotFoundError:
        sys.exit("make_demo_data: scikit-image, whose photographs it cuts, is not installed\n  make venv")


def read_identity(target: Path) -> Json | None:
    """Returns what the directory was made from; None if there is none."""
    manifest = target / "manifest.json"
    if not manifest.exists():
        return None
    content: Json = json.loads(manifest.read_text())
    content.pop("counts")
    return content


def publish(draft: Path, target: Path) -> None:
    """Puts the finished directory in place of what an older run left; refuses to replace anything else."""
    draft.chmod(0o755)  # mkdtemp made it private
    if target.exists():
        if read_identity(target) is None:
            sys.exit(f"make_demo_data: {target} exists and was not written by this script\n  Name another directory.")
        old = Path(tempfile.mkdtemp(prefix=f"{target.name}.", suffix=".old", dir=target.parent))
        target.rename(old)
        draft.rename(target)
        shutil.rmtree(old)
    else:
        draft.rename(target)


def write_all(root: Path) -> dict[str, int]:
    """Returns how many of each were written."""
    documents = [document for path in source_files() for document in documents_in(path)]
    code = [document for document in documents if document["kind"] != "doc"]
    docs = [document for document in documents if document["kind"] == "doc"]
    write_shards(root / "code", code, NUM_CODE_SHARDS)
    write_shards(root / "docs", docs, NUM_DOCS_SHARDS)
    train_tokenizer(root / "tokenizer", (document["text"] for document in documents))
    photos = load_photos()
    return {
        "functions and classes": len(code),
        "docstrings": len(docs),
        "tiles": write_tiles(root / "tiles", photos),
        "crops": write_crops(root, photos),
        "prompts": write_prompts(root / "prompts.parquet", docs),
        "tokens of code": write_tokens(root, "code", code, "bin"),
        "tokens of docstrings": write_tokens(root, "docs", docs, "megatron"),
    }


def source_files() -> list[Path]:
    """Returns the sources of `PACKAGES`, sorted, without their tests."""
    library = Path(sysconfig.get_path("stdlib"))
    files = [library / f"{name}.py" for name in PACKAGES]
    files += [file for name in PACKAGES for file in (library / name).rglob("*.py")]
    return sorted(file for file in files if file.is_file() and not {"test", "tests"} & set(file.parts))


def documents_in(path: Path) -> Iterator[Json]:
    """Yields each function and class at a module's top level, and each docstring anywhere in it, in order."""
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines(keepends=True)
    module = ".".join(path.relative_to(sysconfig.get_path("stdlib")).with_suffix("").parts)
    tree = ast.parse(source)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            kind = "class" if isinstance(node, ast.ClassDef) else "function"
            text = "".join(lines[first - 1 : node.end_lineno])
            yield {"text": text, "kind": kind, "module": module, "name": node.name, "line": first}
    for owner in ast.walk(tree):
        if isinstance(owner, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            doc = ast.get_docstring(owner)
            if doc:
                line = getattr(owner, "lineno", 1)
                yield {"text": doc, "kind": "doc", "module": module, "name": getattr(owner, "name", ""), "line": line}


def write_shards(folder: Path, records: Sequence[Json], num_shards: int) -> None:
    """Writes records to JSONL shards of about equal numbers, neighbours together."""
    folder.mkdir()
    for shard in range(num_shards):
        part = records[shard * len(records) // num_shards : (shard + 1) * len(records) // num_shards]
        write_jsonl(folder / f"{shard:05}.jsonl", part)


def write_jsonl(path: Path, records: Iterable[Json]) -> None:
    """Writes one object per line."""
    lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    path.write_text("".join(lines), encoding="utf-8", newline="\n")


def load_photos() -> dict[str, Image.Image]:
    """Returns the photographs by name, without importing the package."""
    folder = Path(str(importlib.metadata.distribution("scikit-image").locate_file("skimage/data")))
    return {name: Image.open(folder / name).convert("RGB") for name in PHOTOS}


def cuts(photos: dict[str, Image.Image], size: int, stride: int) -> list[tuple[Image.Image, Json]]:
    """Returns squares of all photographs with what is known about each."""
    found = []
    for name, photo in photos.items():
        for top in range(0, photo.height - size + 1, stride):
            for left in range(0, photo.width - size + 1, stride):
                square = photo.crop((left, top, left + size, top + size))
                caption = f"{PHOTOS[name]}: {place_in(photo, left + size / 2, top + size / 2)}"
                found.append((square, {"caption": caption, "photo": name, "left": left, "top": top, "size": size}))
    return found


def place_in(photo: Image.Image, x: float, y: float) -> str:
    """Says in words where a point lies."""
    row = ("top", "middle", "bottom")[int(3 * y / photo.height)]
    column = ("left", "center", "right")[int(3 * x / photo.width)]
    return f"{row} {column}"


def write_tiles(folder: Path, photos: dict[str, Image.Image]) -> int:
    """Writes tiles of all photographs, mixed, to tar shards with sidecars; jpg, png and webp in turn."""
    folder.mkdir()
    tiles = cuts(photos, TILE, TILE_STRIDE)
    random.Random(0).shuffle(tiles)
    for shard in range(NUM_TILE_SHARDS):
        metadata = []
        with (
            (folder / f"{shard:05}.tar").open("wb") as file,
            webdataset.TarWriter(file, encoder=False, mtime=0) as writer,
        ):
            for number in range(shard, len(tiles), NUM_TILE_SHARDS):
                tile, facts = tiles[number]
                kind = "png" if facts["photo"] == "camera.png" else "webp" if facts["photo"] == "rocket.jpg" else "jpg"
                key = f"{number:06}"
                writer.write({"__key__": key, kind: encoded(tile, kind)})
                metadata.append({"key": key, **facts})
        write_jsonl(folder / f"{shard:05}.meta.jsonl", metadata)
    return len(tiles)


def write_crops(root: Path, photos: dict[str, Image.Image]) -> int:
    """Writes larger squares as files of their own, and a JSONL file that names them."""
    (root / "crops").mkdir()
    crops = cuts(photos, CROP, CROP_STRIDE)
    records = []
    for number, (crop, facts) in enumerate(crops):
        name = f"crops/{number:04}.jpg"
        (root / name).write_bytes(encoded(crop, "jpg"))
        records.append({"imagepath": name, **facts})
    write_jsonl(root / "crops.jsonl", records)
    return len(crops)


def encoded(image: Image.Image, kind: str) -> bytes:
    """Returns the bytes of an image file."""
    file = io.BytesIO()
    image.save(file, {"jpg": "JPEG", "png": "PNG", "webp": "WEBP"}[kind], quality=90)
    return file.getvalue()


def write_prompts(path: Path, docs: Sequence[Json]) -> int:
    """Asks for what named functions and classes do; their docstrings are the answers."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    named = [doc for doc in docs if doc["name"]]
    rows = [
        {
            "data_source": "stdlib",
            "prompt": [{"role": "user", "content": f"What does {doc['name']} of Python's module {doc['module']} do?"}],
            "reward_model": {"style": "rule", "ground_truth": doc["text"]},
            "extra_info": {"index": number, "line": doc["line"]},
        }
        for number, doc in enumerate(named[:: max(1, len(named) // NUM_PROMPTS)])
    ]
    pq.write_table(pa.Table.from_pylist(rows), path)
    return len(rows)


def train_tokenizer(folder: Path, texts: Iterable[str]) -> None:
    """Trains byte-level BPE and saves it so that `transformers.AutoTokenizer` loads it offline."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END_OF_TEXT, pad_token=END_OF_TEXT)
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)


def write_tokens(root: Path, name: str, documents: Sequence[Json], storage_type: str) -> int:
    """Writes a store of documents in tokens, each with an end."""
    tokenizer = Tokenizer.from_file(str(root / "tokenizer" / "tokenizer.json"))
    encoded_documents = tokenizer.encode_batch_fast([document["text"] for document in documents])
    end = tokenizer.token_to_id(END_OF_TEXT)
    dtype = token_dtype(tokenizer.get_vocab_size() - 1, storage_type)
    with StoreWriter(storage_type, root / "tokens" / name, {"sequence": dtype}) as writer:
        for document in encoded_documents:
            writer.append({"sequence": [*document.ids, end]})
    return writer.num_tokens


if __name__ == "__main__":
    main(sys.argv[1:])

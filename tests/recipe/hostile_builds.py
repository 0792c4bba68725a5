"""Builds each target of streamdata's with hostile parameters under `allow=[]`, and prints what Python's audit hook saw.

Run as `python -m tests.recipe.hostile_builds FOLDER`, with FOLDER/cache as the home and as streamdata's cache: a hook
cannot be taken away again.
"""

import builtins
import json
import os
import shutil
import sys
import sysconfig
import traceback
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from transformers import AutoProcessor  # noqa: F401  # with it comes code that torch makes up, before the hook is there

import streamdata
from streamdata import instantiate_from_yaml
from streamdata.recipe.check import check_recipe
from streamdata.recipe.signatures import parameters_of
from streamdata.recipe.targets import TARGETS, import_target
from tests.shard_files import jpeg, write_jsonl, write_tars
from tests.stores.tiny_stores import write
from tests.text.chat_templates import CHATML, chat_tokenizer

_PACKAGE = Path(streamdata.__file__).parent
TRUSTED: Final = (*(sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")), str(_PACKAGE), "<frozen")
NEVER: Final = {
    "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "pty.spawn",
    "ctypes.dlopen", "pickle.find_class",
}  # fmt: skip
WRITES: Final = {
    "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.chmod", "os.truncate",
    "tempfile.mkstemp", "tempfile.mkdtemp",
}  # fmt: skip
OF_ALL_SOURCES: Final = {"name", "percent", "holdout", "part"}
"""Handled in one place, `NamedSource`: of one source they are enough."""
FOR_WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Watch:
    """Notes what no recipe may do."""

    def __init__(self, cache: Path) -> None:
        self.cache, self.doing, self.seen = str(cache), "", []

    def __call__(self, event: str, args: tuple) -> None:
        """The hook; what goes wrong in here would be raised where the event is."""
        if self.doing and self._is_hostile(event, args):
            self.seen.append(f"{self.doing}: {event} {[str(part)[:200] for part in args]}")

    def _is_hostile(self, event: str, args: tuple) -> bool:
        if event == "exec":
            name = args[0].co_filename
            return not name.startswith(TRUSTED) and not (name == "<string>" and _imports())
        if event == "open":
            path, _, flags = args
            return bool((flags or 0) & FOR_WRITING) and not isinstance(path, int) and not self._is_cached(path)
        paths = [path for path in args if isinstance(path, str | bytes | os.PathLike)]
        return (event in NEVER and not _imports()) or (event in WRITES and not all(map(self._is_cached, paths)))

    def _is_cached(self, path: Any) -> bool:
        """Whether it lies in the index cache, or is an index beside its shard."""
        path = Path(os.path.abspath(os.fsdecode(path)))
        is_index = path.name.startswith(".") and ".index" in path.name
        return is_index or str(path).startswith(self.cache) or _imports()


def _imports() -> bool:
    """Whether a module of a trusted package is being imported: what it then does is its own."""
    frames = islice(traceback.walk_stack(None), 60)
    return any(frame.f_code.co_filename.startswith("<frozen importlib") for frame, _ in frames)


def write_data(folder: Path) -> None:
    """A little of everything that a source reads."""
    write_tars(folder / "tars", [3], images=True)
    write_jsonl(folder / "jsonl", [3])
    for name in ("bin", "h5", "megatron"):
        write(name, folder / name)
    for name in ("sft", "dpo", "grpo"):
        write("bin", folder / name, name)
    tokenizer = chat_tokenizer(folder, CHATML)
    tokenizer.pad_token = "<|start|>"
    tokenizer.save_pretrained(folder / "tokenizer")
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    others = [turns[0], {"role": "assistant", "content": "no"}]
    rows = {
        "prompts": {"prompt": turns[:1]},
        "chats": {"messages": turns},
        "pairs": {"chosen": turns, "rejected": others},
    }
    for name, row in rows.items():
        pq.write_table(pa.Table.from_pylist([row] * 2), folder / f"{name}.parquet")
    (folder / "a.jpg").write_bytes(jpeg(1))
    (folder / "rows.csv").write_text("a,b\n1,2\n")
    (folder / "classes" / "cat").mkdir(parents=True)
    (folder / "classes" / "cat" / "a.jpg").write_bytes(jpeg(1))
    (folder / "images.jsonl").write_text(json.dumps({"imagepath": "a.jpg"}) + "\n")


def write_evil_tokenizer(folder: Path) -> str:
    """Files that want code of their own to be run, which would write a file."""
    evil = folder / "evil"
    shutil.copytree(folder / "tokenizer", evil)
    (evil / "boom.py").write_text(f"open({str(folder / 'outside' / 'ran')!r}, 'w')\nclass Boom: pass\n")
    names = {"AutoTokenizer": ["boom.Boom", None], "AutoProcessor": "boom.Boom", "AutoConfig": "boom.Boom"}
    own = {"tokenizer_class": "Boom", "processor_class": "Boom", "model_type": "boom", "auto_map": names}
    for name in ("tokenizer_config", "processor_config", "config"):
        (evil / f"{name}.json").write_text(json.dumps(own))
    return str(evil)


def good_params(folder: Path) -> dict[str, dict[str, Any]]:
    """Parameters with which each target builds."""
    tokenizer = str(folder / "tokenizer")
    store = {"window_size": 4}
    text = {"max_sequence_length": 8, "tokenizer_name": tokenizer}
    source = {"target": "streamdata.SeqDataset", "params": {"load_path": str(folder / "bin"), **store}}
    chats = {"tokenizer": tokenizer, "config": {"max_length": 64}}
    good = {
        "MergedDataset": {"datasets": [{**source, "name": "a", "percent": 1}]},
        "BlendableDataset": {"datasets": [source], "weights": [1]},
        "BlendableDataset.from_megatron": {"paths": str(folder / "megatron"), "window_size": 4},
        "make_blendable_dataset": {"datasets": [[1, 2]], "weights": [1]},
        "CsvDataset": {"path": str(folder / "rows.csv")},
        "DPODataset": {"load_path": str(folder / "dpo")},
        "DatasetFactory.load": {"train_type": "seq", "load_path": str(folder / "h5"), **store},
        "DecodeImages": {"fields": "image", "size": 4},
        "GRPODataset": {"load_path": str(folder / "grpo")},
        "ImageFolderDataset": {"path": str(folder / "classes")},
        "ImageJsonlDataset": {"jsonl_path": str(folder / "images.jsonl")},
        "JsonlIterableDataset": {"path": str(folder / "jsonl")},
        "MetaDistributedWebDataset": {"path": str(folder / "tars"), "meta_names": ["score"]},
        "ParquetDataset": {"path": str(folder / "chats.parquet")},
        "PreferenceDataset": {"data_files": str(folder / "pairs.parquet"), **chats},
        "RLHFDataset": {"data_files": str(folder / "prompts.parquet"), "tokenizer": tokenizer, "config": {}},
        "SFTChatDataset": {"data_files": str(folder / "chats.parquet"), **chats},
        "SFTDataset": {"load_path": str(folder / "sft"), **store},
        "SeqDataset": {"load_path": str(folder / "megatron"), **store},
        "StoreFactory.create": {"storage_type": "bin"},
        "ImageJsonlProcessFnBuilder": {"img_size": 4},
        "ImageTextPairProcessFnBuilder": {"img_size": 4, "max_text_len": 4, "tokenizer_name": tokenizer},
        "TextJsonlProcessFnBuilder": text,
        "PackTokens": {"max_tokens": 8},
        "GroupByLength": {"max_tokens_per_batch": 8},
        "Cost": {"linear": 2, "quadratic": 0.5},
        "Cost.of_model": {"num_params": 1e9, "hidden": 64, "layers": 2},
        "GroupCollate": {},
        "ResumableDistributedSampler": {"dataset": source},
        "Pad": {"multiple_of": 64},
        "TensorCollate": {"fields": {"input_ids": {"target": "streamdata.Pad", "params": {}}, "text": "drop"}},
    }
    return {f"streamdata.{name}": params for name, params in good.items()}


def hostile_values(folder: Path) -> list[Any]:
    """What a recipe might give for any parameter."""
    outside, command = folder / "outside", f"pipe:touch {folder}/outside/ran"
    shard = f"file://{folder}/jsonl/00000.jsonl"
    private = {"target": "streamdata.shards.sequential.SequentialJsonl", "params": {"urls": [command]}}
    return [
        command,
        [[command], command],
        f"{{{command},x}}",
        f"simplecache::{shard}",
        f"{{blockcache,x}}::{shard}",
        f"reference::file://{folder}/refs.json",
        f"libarchive://x::file://{folder}/tars/00000.tar",
        write_evil_tokenizer(folder),
        private,
        {"target": "streamdata.StoreWriter", "params": {"storage_type": "bin", "directory": str(outside)}},
        {"target": "functools.partial", "params": {"func": {"target": "streamdata.JsonlIterableDataset"}}},
        {"cache_dir": str(outside)},
        {"target": "builtins.dict", "params": {"cache_dir": str(outside / "x")}},
        {"use_shm": True},
    ]


def recipe_of(target: str, params: dict[str, Any], folder: Path) -> Any:
    """The target where it belongs: a builder on a source, a source in a mixture."""
    node = {"target": target, "params": params}
    if target.endswith("ImageJsonlProcessFnBuilder"):
        node = {"target": "streamdata.ImageJsonlDataset", "params": {"jsonl_path": str(folder / "images.jsonl")}}
        node["single_process_fn"] = {"target": target, "params": params}
    elif target.endswith("Builder"):
        kinds = {"I": ("MetaDistributedWebDataset", "tars"), "T": ("JsonlIterableDataset", "jsonl")}
        name, file = kinds[target.removeprefix("streamdata.")[0]]
        node = {"target": f"streamdata.{name}", "params": {"path": str(folder / file)}}
        node["process_fn"] = {"target": target, "params": params}
    if "name" in TARGETS[node["target"]] and target != "streamdata.MergedDataset":
        node.update(name="a", percent=1)
        return {"target": "streamdata.MergedDataset", "params": {"datasets": [node], "cyclic": False}}
    return node


def attacks(folder: Path) -> dict[str, Any]:
    """Whole recipes that run a command, or write, where nothing is in their way."""
    command = f"pipe:touch {folder}/outside/ran"
    private = "streamdata.shards"
    shards = {"target": f"{private}.sequential.SequentialJsonl", "params": {"urls": [command]}}
    sizes = {"kind": "jsonl", "shuffle_buffer": 0}
    other = {
        "target": "streamdata.sources.files.sequential_source.SequentialSource",
        "params": {"shards": shards, **sizes},
    }
    source = {"target": "streamdata.JsonlIterableDataset", "params": {"path": str(folder / "jsonl")}}
    named = {**source, "name": "a", "percent": 1}
    outside = {"storage_type": "bin", "directory": str(folder / "outside" / "x"), "keys": {"sequence": "uint16"}}
    return {
        "opens a pipe": {"target": f"{private}.streams.PipeBytes", "params": {"url": command}},
        "reads a pipe": shards,
        "other source": {"target": "streamdata.MergedDataset", "params": {"datasets": [{**named, "source": other}]}},
        "writes": {"target": "streamdata.StoreWriter", "params": outside},
        "publishes": {"target": f"{private}.publish.publish", "params": {"path": str(folder / "x"), "parts": []}},
        "names a pipe": {"target": "streamdata.JsonlIterableDataset", "params": {"path": [command]}},
        "writes in a cache": {**source, "params": {"path": f"simplecache::file://{folder}/jsonl/00000.jsonl"}},
        "reaches outside": {"target": "streamdata.io.streams.subprocess.run", "params": {"args": "true"}},
    }


def build(recipe: Any) -> str:
    """Build what a file holds, or would hold, and draw two samples; return how that ended."""
    try:
        built = instantiate_from_yaml(recipe, allow=[])
        list(islice(built, 2)) if hasattr(built, "__iter__") else None
    except Exception as error:
        return type(error).__name__
    return "built"


def main() -> None:
    """Print as JSON what the hook saw, how the good recipes and the attacks ended, and what a check found in these."""
    folder = Path(sys.argv[1])
    for name in ("cache", "outside"):
        (folder / name).mkdir(exist_ok=True)
    builtins.input = lambda *_: "yes"  # to whoever asks
    write_data(folder)
    values, good = hostile_values(folder), good_params(folder)
    sound = {target: build(recipe_of(target, params, folder)) for target, params in good.items()}
    watch = Watch(folder / "cache")
    sys.addaudithook(watch)
    tried: Counter[str] = Counter()
    for target in TARGETS:
        parameters = parameters_of(import_target(target))
        assert parameters is not None, target
        for name in [name for name in parameters.needed if name not in OF_ALL_SOURCES or not tried[name]]:
            # What one target has refused, others with a parameter of that name are given by quarters.
            some = values[tried[name] % 4 :: 4] if tried[name] else values
            tried[name] += 1
            for value in some:
                watch.doing = f"{target}, {name}: {value}"
                build(recipe_of(target, {**good.get(target, {}), name: value}, folder))
    ends, checked = {}, {}
    file = folder / "cache" / "recipe.yaml"
    for watch.doing, recipe in attacks(folder).items():
        file.write_text(json.dumps(recipe))
        ends[watch.doing] = build(file)
        checked[watch.doing] = len(check_recipe(file, allow=[]))
    outside = sorted(os.listdir(folder / "outside"))
    found = {"seen": watch.seen, "sound": sound, "attacks": ends, "checked": checked, "outside": outside}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()

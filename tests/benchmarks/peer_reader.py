"""Writes and reads records as litdata or MosaicML Streaming do: a script for an environment that has them.

`python -P peer_reader.py write litdata|mosaic FOLDER RECORDS BYTES` writes into a folder; `… read NAME ENDPOINT
CACHE` reads the bucket "data" of an S3 API twice, shuffled, and prints the seconds of both epochs as JSON; `… load
litdata ENDPOINT CACHE shuffled|in_order WORKERS` those of one, in batches of 64.
"""

import json
import os
import sys
import time
from collections.abc import Iterable
from types import ModuleType
from typing import Any

_CHUNK = 8 << 20  # bytes; about as large as the tars beside which it is read


def _streaming() -> Any:
    """MosaicML's package, without its readers of images, for which it would import torchvision."""
    vision: Any = ModuleType("streaming.vision")
    vision.__getattr__ = lambda name: None
    sys.modules["streaming.vision"] = vision
    import streaming

    return streaming


def _records(count: int, size: int) -> Iterable[dict[str, bytes]]:
    return ({"bin": number.to_bytes(8, "little") * (size // 8)} for number in range(count))


def write(name: str, folder: str, count: int, size: int) -> None:
    """Fill a folder with records."""
    if name == "mosaic":
        with _streaming().MDSWriter(out=folder, columns={"bin": "bytes"}, size_limit=_CHUNK) as mosaic:
            for record in _records(count, size):
                mosaic.write(record)
        return
    from litdata.streaming.writer import BinaryWriter

    litdata = BinaryWriter(folder, chunk_bytes=_CHUNK)
    for number, record in enumerate(_records(count, size)):
        litdata[number] = record
    litdata.done()
    litdata.merge()


def _dataset(name: str, endpoint: str, cache: str, *, shuffle: bool = True) -> Any:
    if name == "mosaic":
        os.environ["S3_ENDPOINT_URL"] = endpoint
        return _streaming().StreamingDataset(remote="s3://data", local=cache, shuffle=True, batch_size=64)
    import litdata
    from litdata.streaming import downloader

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # it reads from https alone, and has no setting
    options = {"endpoint_url": endpoint}
    return litdata.StreamingDataset("s3://data/", cache_dir=cache, shuffle=shuffle, storage_options=options)


def _time(dataset: Any) -> float:
    begin = time.perf_counter()
    found = {record["bin"][:8] for record in dataset}
    took = time.perf_counter() - begin
    if len(found) != len(dataset):
        raise ValueError(f"expected each of {len(dataset)} records, got {len(found)}")
    return took


def _loading_time(dataset: Any, workers: int) -> float:
    import litdata

    loader = litdata.StreamingDataLoader(dataset, batch_size=64, num_workers=workers, collate_fn=list)
    begin = time.perf_counter()
    found = sum(map(len, loader))
    took = time.perf_counter() - begin
    if found != len(dataset):
        raise ValueError(f"expected {len(dataset)} records, got {found}")
    return took


def main() -> None:
    """Do what the arguments say."""
    what, name, *rest = sys.argv[1:]
    if what == "write":
        write(name, rest[0], int(rest[1]), int(rest[2]))
        return
    os.environ |= {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_DEFAULT_REGION": "us-east-1"}
    endpoint, cache, *how = rest
    if what == "load":
        order, workers = how
        times = [_loading_time(_dataset(name, endpoint, cache, shuffle=order == "shuffled"), int(workers))]
    else:
        dataset = _dataset(name, endpoint, cache)
        times = [_time(dataset) for _ in range(2)]
    sys.stdout.write("\n" + json.dumps(times) + "\n")


if __name__ == "__main__":
    main()

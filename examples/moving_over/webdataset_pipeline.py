"""Pipelines of webdataset's: several of its stages as one process function, and a whole pipeline as a source.

python examples/moving_over/webdataset_pipeline.py demo_data
"""

import sys
from itertools import islice
from pathlib import Path

import webdataset
from PIL import Image
from torch.utils.data import DataLoader

from streamdata import MergedDataset, MetaDistributedWebDataset, mixed_collate, named


def size(image: Image.Image) -> tuple[int, int]:
    """A function of the module, so that spawned workers find it."""
    return image.size


def records_of(data: str) -> MergedDataset:
    """The shards as streamdata reads them: any number of ranks and workers, and a resume that reads nothing again."""
    images = webdataset.rename(image="jpg;png;webp")
    stages = [webdataset.decode("pil"), images, webdataset.map_dict(image=size)]
    return MergedDataset([MetaDistributedWebDataset(f"{data}/tiles", stages, name="tiles", percent=1)])


def pipeline_of(data: str) -> MergedDataset:
    """The pipeline as it is: it divides its shards by worker, and a resume reads again what was read of the epoch."""
    urls = sorted(map(str, Path(data, "tiles").glob("*.tar")))
    pipeline = webdataset.WebDataset(urls, shardshuffle=False).decode("pil")
    return MergedDataset([named(pipeline, name="tiles", percent=1, lanes="self")])


if __name__ == "__main__":
    for dataset in (records_of(sys.argv[1]), pipeline_of(sys.argv[1])):
        for batch in islice(DataLoader(dataset, batch_size=2, num_workers=2, collate_fn=mixed_collate), 3):
            print([sample["__key__"] for sample in batch])

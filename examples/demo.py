"""The main job, end to end: a recipe becomes batches; a run that was stopped goes on exactly where it stood.

First `python examples/make_demo_data.py demo_data`, then `python examples/demo.py demo_data`; or `make demo`.
"""

import json
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from streamdata import MergedDataset, describe, instantiate_from_yaml, mixed_collate, to_state
from streamdata.tools.show.page import write_page
from streamdata.tools.show.streams import MixtureSamples, Place
from streamdata.tools.view.exactness import fingerprint
from streamdata.tools.view.totals import Delivery

RECIPE = Path(__file__).parents[1] / "configs" / "demo.yaml"
NUM_BATCHES, STOP_AFTER = 300, 113
NUM_SHOWN = 40

Batch = list[dict[str, Any]]


def build(data: str) -> MergedDataset:
    """Build the recipe; nothing is read yet."""
    dataset: MergedDataset = instantiate_from_yaml(RECIPE, variables={"data": data})
    return dataset


def load(dataset: MergedDataset) -> DataLoader[Batch]:
    """A stock DataLoader with two workers."""
    return DataLoader(dataset, batch_size=16, num_workers=2, collate_fn=mixed_collate)


def content(batch: Batch) -> list[dict[str, str]]:
    """Digests of all fields of a batch's samples."""
    return [fingerprint(sample) for sample in batch]


def run_through(data: str) -> list[list[dict[str, str]]]:
    """Run without a stop; print speed and shares; return what was delivered."""
    dataset = build(data)
    print(describe(dataset), end="\n\n")
    delivery, delivered = Delivery(dataset), []
    started = time.perf_counter()
    for batch in islice(load(dataset), NUM_BATCHES):
        delivery.add(batch)
        delivered.append(content(batch))
    seconds = time.perf_counter() - started
    print(f"{NUM_BATCHES} batches, {delivery.samples / seconds:,.0f} samples/s, two workers, their start included\n")
    print(delivery.table(), end="\n\n")
    return delivered


def stop_and_resume(data: str, checkpoint: Path) -> list[list[dict[str, str]]]:
    """Run, stop in the middle with a checkpoint on disk, resume from it in a new dataset; return what was delivered."""
    states: dict[str, Any] = {}
    delivered = []
    for batch in islice(load(build(data)), STOP_AFTER):
        delivered.append(content(batch))
        states.update(to_state(batch))
    checkpoint.write_text(json.dumps(states))
    print(f"stopped after batch {STOP_AFTER}; the checkpoint is {checkpoint.stat().st_size:,} bytes of JSON")

    dataset = build(data)
    dataset.set_dataloader_states(json.loads(checkpoint.read_text()))
    delivered += [content(batch) for batch in islice(load(dataset), NUM_BATCHES - STOP_AFTER)]
    return delivered


def main(data: str = "demo_data") -> None:
    """Show the stream, then prove its resume.

    Raises:
        SystemExit: The resumed stream differs.
    """
    uninterrupted = run_through(data)
    with tempfile.TemporaryDirectory() as folder:
        resumed = stop_and_resume(data, Path(folder) / "states.json")
    rest = NUM_BATCHES - STOP_AFTER
    same = sum(a == b for a, b in zip(uninterrupted[STOP_AFTER:], resumed[STOP_AFTER:], strict=True))
    print(f"resumed: {same} of {rest} remaining batches equal those of the uninterrupted run, sample by sample")
    if resumed != uninterrupted:
        sys.exit("the resumed stream differs")
    page = Path(data) / "page.html"
    write_page(MixtureSamples(build(data), Place()).page("configs/demo.yaml", NUM_SHOWN), page)
    print(f"to look at what was mixed, open {page}; or: streamdata show configs/demo.yaml --var data={data} -n 1")


if __name__ == "__main__":
    main(*sys.argv[1:])

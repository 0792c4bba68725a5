"""How long a training waits for its data: a transformer on token windows or on JPEG tars, beside a resident batch.

First `python examples/make_demo_data.py demo_data`, then

    python examples/waiting.py demo_data tokens --model 125m --batch-size 16 --workers 4 --device cuda
    python examples/waiting.py demo_data images --model small --batch-size 16 --workers 1 --steps 20
"""

import argparse
import time
from collections.abc import Iterable
from itertools import islice, repeat
from typing import Any, NamedTuple

import torch
from torch import nn

from streamdata import (
    ImageTextPairProcessFnBuilder,
    MergedDataset,
    MetaDistributedWebDataset,
    SeqDataset,
    StreamLoader,
    TensorCollate,
    named,
    to_device,
    to_float,
)

WIDTHS = {"125m": (768, 12, 12), "small": (256, 4, 4)}  # width, layers and heads; 125m is GPT-2's smallest
VOCABULARY, WINDOW, IMAGE, PATCH = 4096, 512, 64, 8


class Transformer(nn.Module):
    """Ids, int64 (B, T), or images, float32 (B, 3, H, W) → the mean of what it makes of them."""

    def __init__(self, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.patches = nn.Conv2d(3, width, PATCH, PATCH)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        embedded = self.patches(x).flatten(2).transpose(1, 2) if x.is_floating_point() else self.tokens(x)
        logits: torch.Tensor = self.head(self.layers(embedded))
        return logits.logsumexp(-1).mean()


def dataset_of(data: str, kind: str) -> MergedDataset:
    """An endless stream of token windows, or of tiles with their captions."""
    if kind == "tokens":
        return MergedDataset([named(SeqDataset(f"{data}/tokens/code", WINDOW), name="code", percent=1)])
    pairs = ImageTextPairProcessFnBuilder(IMAGE, 32, f"{data}/tokenizer")
    folder = f"{data}/tiles"
    tiles = MetaDistributedWebDataset(folder, meta_names=["caption"], process_fn=pairs, name="tiles", percent=1)
    return MergedDataset([tiles])


class Timing(NamedTuple):
    """Of a loop."""

    seconds: float
    waited_s: float


def train(model: nn.Module, batches: Iterable[Any], steps: int) -> Timing:
    """Take so many steps; each is forward, backward and the optimizer's."""
    optimizer = torch.optim.AdamW(model.parameters())
    device = next(model.parameters()).device
    begin, waited, iterator = time.perf_counter(), 0.0, iter(batches)
    for _ in range(steps):
        asked = time.perf_counter()
        batch = to_float(next(iterator))
        waited += time.perf_counter() - asked
        optimizer.zero_grad()
        model(batch["img"] if "img" in batch else batch["input_ids"]).backward()
        optimizer.step()
        if device.type == "cuda":  # else the host runs ahead, and what it waits for is the device
            torch.cuda.synchronize(device)
    return Timing(time.perf_counter() - begin, waited)


def main() -> None:
    """Time both loops, and print what part of the first one was waiting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("kind", choices=["tokens", "images"])
    parser.add_argument("--model", choices=sorted(WIDTHS), default="small")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    model = Transformer(*WIDTHS[arguments.model]).to(arguments.device)
    collate = TensorCollate(fields={} if arguments.kind == "tokens" else {"txt": "drop", "caption": "drop"})
    pin_memory = torch.device(arguments.device).type == "cuda"
    loader = StreamLoader(
        dataset_of(arguments.data, arguments.kind),
        arguments.batch_size,
        arguments.workers,
        collate,
        pin_memory=pin_memory,
    )
    batches = to_device(loader, arguments.device)
    (resident,) = islice(batches, 1)  # the workers have started by then
    train(model, repeat(resident), 3)
    streamed = train(model, batches, arguments.steps)
    alone = train(model, repeat(resident), arguments.steps)
    size = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    print(
        f"{arguments.kind}, {size:.0f} M parameters, batches of {arguments.batch_size}, {arguments.workers} workers, "
        f"{arguments.device}: {100 * streamed.waited_s / streamed.seconds:.2f} % of {streamed.seconds:.1f} s waiting "
        f"for data; {streamed.seconds / alone.seconds:.3f} of the time on a resident batch"
    )


if __name__ == "__main__":
    main()

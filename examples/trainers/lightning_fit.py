"""Lightning, in one process or several: a checkpoint within an epoch, resumed by any number of processes.

python examples/trainers/lightning_fit.py run --max-steps 20 --devices 2
python examples/trainers/lightning_fit.py run --max-steps 40
"""

from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer
from tiny import BATCH_SIZE, TinyModel, parsed, training_set, validation_set
from torch import Tensor

from streamdata import StreamLoader
from streamdata.compat import StreamDataModule


class Learner(LightningModule):
    """Lightning's shell around the model."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.model = TinyModel(folder)

    def training_step(self, batch: dict[str, Tensor], batch_index: int) -> Tensor:
        return self.model(**batch)["loss"]

    def validation_step(self, batch: dict[str, Tensor], batch_index: int) -> None:
        self.log("valid_loss", self.model(**batch)["loss"], sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


arguments = parsed(__doc__, max_steps=20, devices=1, steps_per_epoch=None)

loader = StreamLoader(training_set(), BATCH_SIZE, num_workers=2, steps_per_epoch=arguments.steps_per_epoch)
data = StreamDataModule(loader, StreamLoader(validation_set(), BATCH_SIZE))
trainer = Trainer(
    accelerator="cpu",
    devices=arguments.devices,
    strategy="ddp" if arguments.devices > 1 else "auto",
    max_steps=arguments.max_steps,
    default_root_dir=arguments.folder,
    logger=False,
    enable_checkpointing=False,
)
checkpoint = Path(arguments.folder, "last.ckpt")
trainer.fit(Learner(arguments.folder), datamodule=data, ckpt_path=checkpoint if checkpoint.exists() else None)
trainer.save_checkpoint(checkpoint)

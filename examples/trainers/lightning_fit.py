"""Lightning, in one process or several: a checkpoint within an epoch, resumed by any number of processes.

python examples/trainers/lightning_fit.py run --max-steps 20 --devices 2
python examples/trainers/lightning_fit.py run --max-steps 40
"""

from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from tiny import BATCH_SIZE, TinyModel, parsed, training_set, validation_set, with_targets
from torch import Tensor
from torch.nn.functional import cross_entropy

from streamdata import StreamLoader, by_name, loss_by_source
from streamdata.compat import StreamDataModule

LOG_EVERY = 5


class Learner(LightningModule):
    """Lightning's shell around the model."""

    def __init__(self, folder: str, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = TinyModel(folder), names
        self.sums = torch.zeros(2, len(names))

    def training_step(self, batch: dict[str, Tensor], batch_index: int) -> Tensor:
        output, batch = self.model(**batch), with_targets(batch)
        losses = cross_entropy(output["logits"].transpose(1, 2), batch["target_ids"], reduction="none")
        sums = torch.stack(loss_by_source(losses, batch, len(self.names)))
        self.sums = self.sums.to(sums) + sums
        if (batch_index + 1) % LOG_EVERY == 0:
            sums = self.trainer.strategy.reduce(self.sums, reduce_op="sum")
            self.log_dict({f"loss_{name}": loss for name, loss in by_name(*sums, self.names).items()})
            self.sums.zero_()
        return output["loss"]

    def validation_step(self, batch: dict[str, Tensor], batch_index: int) -> None:
        self.log("valid_loss", self.model(**batch)["loss"], sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


arguments = parsed(__doc__, max_steps=20, devices=1, steps_per_epoch=None)

dataset = training_set(2)
loader = StreamLoader(dataset, BATCH_SIZE, num_workers=2, steps_per_epoch=arguments.steps_per_epoch)
data = StreamDataModule(loader, StreamLoader(validation_set(), BATCH_SIZE))
trainer = Trainer(
    accelerator="cpu",
    devices=arguments.devices,
    strategy="ddp" if arguments.devices > 1 else "auto",
    max_steps=arguments.max_steps,
    default_root_dir=arguments.folder,
    logger=CSVLogger(arguments.folder),
    log_every_n_steps=LOG_EVERY,
    enable_checkpointing=False,
)
checkpoint = Path(arguments.folder, "last.ckpt")
learner = Learner(arguments.folder, dataset.source_names)
trainer.fit(learner, datamodule=data, ckpt_path=checkpoint if checkpoint.exists() else None)
trainer.save_checkpoint(checkpoint)

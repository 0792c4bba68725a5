"""TRL's SFTTrainer, with its own preparation off: it trains on our samples as they are.

torchrun --nproc-per-node=2 examples/trainers/trl_sft.py run --stop-after 5
torchrun --nproc-per-node=2 examples/trainers/trl_sft.py run
"""

from typing import Any

import torch
from datasets import Dataset
from hf_trainer import SourceLosses, StopAfter
from tiny import BATCH_SIZE, NUM_ROWS, VOCABULARY, note, parsed, training_set, with_targets
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.trainer_utils import get_last_checkpoint
from trl import SFTConfig, SFTTrainer

from streamdata import StreamLoader
from streamdata.compat import StreamCallback


class StreamSFTTrainer(SourceLosses, SFTTrainer):
    """An SFTTrainer that reads streams."""

    def get_train_dataloader(self) -> StreamLoader:  # type: ignore[override]
        self.stream = training_set(2)
        per_rank = NUM_ROWS // BATCH_SIZE // self.args.world_size
        return StreamLoader(self.stream, BATCH_SIZE, num_workers=2, steps_per_epoch=per_rank)

    def seen(self, model: torch.nn.Module, _: Any, inputs: dict[str, Any], output: Any) -> None:
        """Of what the model gives: the trainer makes it compute losses in its head, and builds no logits."""
        if model.training:
            self.add(torch.nn.functional.pad(-output.log_probs, (0, 1)), with_targets(inputs))  # of T - 1 tokens

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        note(self.args.output_dir, *inputs.pop("row").tolist())
        if "attention_mask" not in inputs:  # TRL asks for one or for positions; packed rows bring theirs
            positions = torch.arange(inputs["input_ids"].shape[1], device=inputs["input_ids"].device)
            inputs.setdefault("position_ids", positions.expand_as(inputs["input_ids"]))
        return super().training_step(model, inputs, num_items_in_batch)


def tiny_llama() -> LlamaForCausalLM:
    """A model of few weights."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, **sizes))


def options(folder: str, **settings: Any) -> SFTConfig:
    """Of an SFTTrainer that prepares nothing itself."""
    unprepared = {"dataset_kwargs": {"skip_prepare_dataset": True}, "ignore_data_skip": True}
    return SFTConfig(folder, report_to="none", use_cpu=True, bf16=False, logging_steps=1, **unprepared, **settings)


def trainer(arguments: SFTConfig, *callbacks: Any) -> StreamSFTTrainer:
    """An SFTTrainer wants a dataset, which it does not read, and a tokenizer."""
    words = models.WordLevel({f"t{number}": number for number in range(VOCABULARY)})
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words), eos_token="t1")
    unread = Dataset.from_list([{"input_ids": [0], "labels": [0]}])
    job = StreamSFTTrainer(tiny_llama(), arguments, None, unread, processing_class=tokenizer, callbacks=[*callbacks])
    job.model.register_forward_hook(job.seen, with_kwargs=True)
    return job


if __name__ == "__main__":
    line = parsed(__doc__, stop_after=None)
    job = trainer(options(line.folder, num_train_epochs=2), StreamCallback(), StopAfter(line.stop_after))
    job.train(resume_from_checkpoint=get_last_checkpoint(line.folder))

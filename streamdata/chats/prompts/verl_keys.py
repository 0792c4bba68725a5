"""The keys of verl's section `data`, by version: what its trainer reads there and a dataset need not know.

From `verl/trainer/config/data/legacy_data.yaml` of each version, and what `verl/trainer` asks for beside it.
"""

from collections.abc import Mapping
from typing import Final

_BOTH: Final = (
    "custom_cls dataloader_num_workers gen_batch_size max_response_length return_raw_input_ids reward_fn_key tokenizer "
    "train_batch_size train_files train_max_samples trust_remote_code val_batch_size val_files val_max_samples "
    "validation_shuffle"
)
VERL_KEYS: Final[Mapping[str, frozenset[str]]] = {
    "0.6.1": frozenset(f"{_BOTH} sampler datagen".split()),
    "0.9.1": frozenset(f"{_BOTH} audio_key function_tool_path".split()),
}

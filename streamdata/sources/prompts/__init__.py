"""Prompts for reinforcement learning: parquet to ready tensors.

1. parquet → `Rows` → rows, mapped from an Arrow file in the cache
2. row → `read_chat`, `open_media` → messages with typed parts, media
3. messages → `PromptReader.encode` → token ids, media expanded
4. lengths → `choose_rows` → the rows that stay
5. ids → `fit`, `RopeRule.positions` → tensors of one length (`RLHFDataset`)
6. items → `collate_fn` → batches
"""

from streamdata.sources.prompts.collate import collate_fn
from streamdata.sources.prompts.config import PromptConfig
from streamdata.sources.prompts.dataset import RLHFDataset
from streamdata.sources.prompts.rows import Rows

__all__ = ["PromptConfig", "RLHFDataset", "Rows", "collate_fn"]

"""Supervised chats and preferences: parquet to tensors.

1. parquet → `ParquetRows` → rows, read from a file in the cache
2. row → its format → messages or texts, with what is trained
3. messages → `ChatEncoder` → token ids and loss mask, as prepared offline; media → `MediaChatEncoder`
4. ids, mask → tensors of one length, or unpadded (`SFTChatDataset`, `PreferenceDataset`)
"""

from streamdata.chats.preference import PreferenceConfig, PreferenceDataset
from streamdata.chats.sft import SFTChatConfig, SFTChatDataset

__all__ = ["PreferenceConfig", "PreferenceDataset", "SFTChatConfig", "SFTChatDataset"]

"""Chats, pairs and prompts: rows to tensors.

1. files → `ParquetRows` → rows, read from a file in the cache
2. row → its format → messages or texts, media unopened
3. media → `open_media` → images and frames, in the sizes that rows ask for
4. messages, media → `Encoder` → token ids, media expanded; of chats also which are trained (`ChatEncoder`)
5. prompts' lengths → `choose_rows` → the rows that stay
6. ids → tensors of one length, or unpadded (`SFTChatDataset`, `PreferenceDataset`, `RLHFDataset`)
7. prompts → `prompt_collate` → batches

- `settings`: keys of configs, their defaults and errors, with verl's
- `chat_dataset`: supervised chats and pairs
- `prompts`: prompts for reinforcement learning, verl's hooks, and their batches
- `prompt_reader`: a row's number → encoded prompt, and all that its length depends on
- `lengths`: measuring prompts in several processes, once unless code of the user's takes part, and which stay
- `encoding`: text and media → ids; cuts that keep media whole; rope positions
- `media`: images and videos, from files, bytes and lists of frames

Nothing is imported here: processes that only measure begin in half the time without torch.
"""

__all__ = ["chat_dataset", "encoding", "lengths", "media", "prompt_reader", "prompts", "settings"]

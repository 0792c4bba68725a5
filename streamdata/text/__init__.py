"""Messages and texts ↔ token ids.

1. name → `load_tokenizer` → tokenizer of this process
2. columns of a row → `formats`, `messages` → messages or texts, their media, schemas of tools
3. messages → `ChatRenderer` → text, by the tokenizer's chat template
4. messages → `ChatEncoder`, texts → `encode_text` → token ids, and which of them are trained
5. tokens → `postprocess_data`, `cut`, `fit_length` → tokens of a bounded length
6. documents' lengths → `plan_simple`, `plan_bfd`, `plan_bfd_split` → which documents make up which rows (`Plan`)
7. documents' tokens → `RowPacker` → rows of one length, as they come
"""

from streamdata.text.masks import ChatEncoder
from streamdata.text.packing import PackedRow, RowPacker
from streamdata.text.plan import plan_bfd, plan_bfd_split, plan_simple
from streamdata.text.templates import ChatRenderer
from streamdata.text.tokenizer import as_tokenizer, end_token, load_tokenizer, tokenize, tokenizer_fingerprint
from streamdata.text.truncation import (
    OverlongError,
    compute_position_id_with_mask,
    cut,
    fit_length,
    pad_sequence_to_length,
    postprocess_data,
)

__all__ = [
    "ChatEncoder",
    "ChatRenderer",
    "OverlongError",
    "PackedRow",
    "RowPacker",
    "as_tokenizer",
    "compute_position_id_with_mask",
    "cut",
    "end_token",
    "fit_length",
    "load_tokenizer",
    "pad_sequence_to_length",
    "plan_bfd",
    "plan_bfd_split",
    "plan_simple",
    "postprocess_data",
    "tokenize",
    "tokenizer_fingerprint",
]

"""Messages and texts ↔ token ids.

1. `tokenizer`: a name → the tokenizer of this process
2. `formats`, `messages`: columns of a row → messages or texts, their media, schemas of tools
3. `templates`: messages → `ChatRenderer` → text, by the tokenizer's chat template
4. `masks`: messages or texts → token ids, and which of them are trained; `spans` and `probes` find what a message says
5. `truncation`: tokens → tokens of a bounded length
6. `plan`: documents' lengths → which documents make up which rows
7. `packing`: texts → rows of one length; `lookahead`: tokenized samples → rows, or batches of alike length
8. `image_text_pairs`: images with texts → tensors
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

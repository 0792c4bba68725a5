"""Messages and texts ↔ token ids.

1. name → `load_tokenizer` → tokenizer of this process
2. a row's columns → `read_chat`, `messages_of`, `read_tools` → messages, media, tools (`messages`)
3. messages → `ChatRenderer` → text, by the tokenizer's chat template in a sandbox
4. messages → `ChatEncoder` → token ids, and which of them are trained
5. tokens → `postprocess_data`, `cut`, `fit_length` → tokens of a bounded length
6. documents' lengths → `plan_simple`, `plan_bfd`, `plan_bfd_split` → which documents make up which rows (`Plan`)
7. documents' tokens → `RowPacker` → rows of one length, as they come
"""

from streamdata.text.masks import ChatEncoder, EncodedChat, encode_chat
from streamdata.text.packing import Row, RowPacker
from streamdata.text.plan import Plan, plan_bfd, plan_bfd_split, plan_simple
from streamdata.text.templates import ChatRenderer, render_chat, template_source
from streamdata.text.tokenizer import (
    as_tokenizer,
    end_token,
    load_tokenizer,
    token_ids,
    tokenize,
    tokenizer_digest,
    tokenizer_fingerprint,
    tokenizer_of,
)
from streamdata.text.truncation import (
    POLICIES,
    TRUNCATIONS,
    Cut,
    OverlongError,
    compute_position_id_with_mask,
    cut,
    fit_length,
    pad_sequence_to_length,
    postprocess_data,
)

__all__ = [
    "POLICIES",
    "TRUNCATIONS",
    "ChatEncoder",
    "ChatRenderer",
    "Cut",
    "EncodedChat",
    "OverlongError",
    "Plan",
    "Row",
    "RowPacker",
    "as_tokenizer",
    "compute_position_id_with_mask",
    "cut",
    "encode_chat",
    "end_token",
    "fit_length",
    "load_tokenizer",
    "pad_sequence_to_length",
    "plan_bfd",
    "plan_bfd_split",
    "plan_simple",
    "postprocess_data",
    "render_chat",
    "template_source",
    "token_ids",
    "tokenize",
    "tokenizer_digest",
    "tokenizer_fingerprint",
    "tokenizer_of",
]

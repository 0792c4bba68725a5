"""From text to token rows.

1. name → `load_tokenizer` → tokenizer of this process
2. documents' tokens → `RowPacker` → rows of one length
"""

from streamdata.text.packing import Row, RowPacker
from streamdata.text.tokenizer import end_token, load_tokenizer, tokenize, tokenizer_fingerprint

__all__ = ["Row", "RowPacker", "end_token", "load_tokenizer", "tokenize", "tokenizer_fingerprint"]

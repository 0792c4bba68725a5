"""Messages and texts ↔ token ids.

1. `tokenizer`: a name → the tokenizer of this process
2. `formats`, `messages`: columns of a row → messages or texts, their media, schemas of tools
3. `templates`: messages → `ChatRenderer` → text, by the tokenizer's chat template
4. `masks`: messages or texts → token ids, and which of them are trained; `spans` and `probes` find what a message says
5. `truncation`: tokens → tokens of a bounded length
6. `plan`: documents' lengths → which documents make up which rows
7. `packing`: texts → rows of one length; `lookahead`: tokenized samples → rows; `grouping`: batches of alike length
8. `image_text_pairs`: images with texts → tensors
"""

"""Plain values for what there is to show: `sample, stored record or mixture → views → a terminal, a file or a browser`.

- `model`: the values, how much of each is shown, and how control characters are made visible
- `samples`: a mixture's sample → its view, with the records that were read for it
- `stored`: a store's record → its view
- `fields`: a field → its view, by what it holds
- `token_fields`: fields of tokens, masks and chats → a sequence
- `token_sequence`: a sequence → runs of tokens with their texts
- `mixture`: samples → shares, lengths and charts of their mixture
"""

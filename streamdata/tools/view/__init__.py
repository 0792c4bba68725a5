"""Looking at a stream, without changing it.

1. dataset → `shares_of` → the nodes of its tree of sources, with the share of each
2. dataset → `describe` → that tree as text
3. batches → `Delivery` → what a run delivered, and how fast: samples, bytes, shares, drops
4. states → `report` → numbers for a logger; `totals_of` → what was delivered of each source
5. sample → `fingerprint` → what it holds, comparable; recipe → `find_inexact` → functions that a resume does not repeat

- `tree.py`: shares and functions of the nodes, the tree as text; tables and paragraphs that fit the terminal.
- `totals.py`: what states say was delivered, as numbers and in words; samples, bytes and pace of a running stream.
- `exactness.py`: digests of samples, and the comparison of a stream with itself after a resume.
"""

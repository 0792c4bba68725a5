"""Looking at a stream, without changing it.

1. dataset → `shares_of` → the nodes of its tree of sources, with the share of each
2. dataset → `describe` → that tree as text
3. batches → `Delivery` → what a run delivered: samples, bytes, wanted and achieved shares, drops
4. sample → `fingerprint` → what it holds, comparable; recipe → `find_inexact` → functions that a resume does not repeat

- `tree.py`: shares and functions of the nodes, the tree as text; tables and paragraphs that fit the terminal.
- `shares.py`: samples, bytes and shares that were delivered.
- `exactness.py`: digests of samples, and the comparison of a stream with itself after a resume.
"""

from streamdata.tools.view.exactness import Inexact, find_inexact, fingerprint
from streamdata.tools.view.shares import Delivery, SourceCount
from streamdata.tools.view.tree import describe, shares_of

__all__ = ["Delivery", "Inexact", "SourceCount", "describe", "find_inexact", "fingerprint", "shares_of"]

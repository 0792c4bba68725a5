"""Looking at a stream, without changing it.

1. dataset → `shares_of` → the nodes of its tree of sources, with the share of each
2. dataset → `describe` → that tree as text
3. batches → `Delivery` → what a run delivered: samples, bytes, wanted and achieved shares, drops
4. sample → `fingerprint` → what it holds, comparable; recipe → `find_inexact` → functions that a resume does not repeat
"""

from streamdata.tools.view.exactness import Inexact, find_inexact
from streamdata.tools.view.fingerprint import fingerprint
from streamdata.tools.view.nodes import NodeShare, shares_of
from streamdata.tools.view.shares import Delivery, SourceCount
from streamdata.tools.view.tree import describe

__all__ = ["Delivery", "Inexact", "NodeShare", "SourceCount", "describe", "find_inexact", "fingerprint", "shares_of"]

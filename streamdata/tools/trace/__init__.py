"""What a run has read, by its states.

1. recipe, states → `Trace.at` → the records of a step: by seek where each record gives one sample, else by reading
2. recipe, states, a record → `Trace.find` → the steps at which it came or comes
3. recipe, states → `Trace.batches` → what a rank got from a step on
4. states → `report` → numbers for a logger; `totals_of` → what was delivered of each source, and their differences
"""

from streamdata.tools.trace.report import report
from streamdata.tools.trace.totals import SourceTotals, Totals, totals_of
from streamdata.tools.trace.trace import Trace, TracedStep

__all__ = ["SourceTotals", "Totals", "Trace", "TracedStep", "report", "totals_of"]

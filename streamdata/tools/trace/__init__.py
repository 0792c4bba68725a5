"""Records that a run has read, by its states.

1. recipe, states → `Trace.at` → the records of a step: by seek where each record gives one sample, else by reading
2. recipe, states, a record → `Trace.find` → the steps at which it came or comes
3. recipe, states → `Trace.batches` → what a rank got from a step on
4. loader → `metrics` → the numbers of its states and its times, for Prometheus

- `trace.py`: a run's steps, and the legs of a rank: what it read of a pass between two of the states that are given.
- `era.py`: a generation, its lanes, where one stands after so many more samples, and the batches of a leg.
- `find.py`: the steps of a record.
- `metrics.py`: the numbers of a running loader, as text or on a port.
"""

"""Where the stream stands: `sample or batch → to_state → flat dict of JSON → where each node stands in each lane`.

1. `cursor.py`: where one lane stands in one node, as samples carry it
2. `to_state.py`: samples → their part of the states, a flat dict to be collected with `states.update(…)`
3. `headers.py`: what states say of the run: its size and tree, and what it had come to under earlier sizes
4. `table.py`: the flat dict ↔ a table of checked cursors
5. `progress.py`: a table → where each node stands in each lane, or an error that says what does not fit
6. `checks.py`: states and the present tree → what differs, or is missing
7. `history.py`: what was delivered by now
8. `saving.py`, `loading.py`: states ↔ files of all ranks
9. `joining.py`: states of several ranks → one
10. `gathering.py`: the same over torch.distributed, and whether all ranks agree; `ranks.py`: their meetings
11. `lane_state.py`: the state of one lane's iterator, which a StatefulDataLoader asks for
"""

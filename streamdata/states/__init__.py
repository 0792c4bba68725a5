"""Where the stream stands: `sample or batch → to_state → flat dict of JSON → where each node stands in each lane`.

1. `cursor.py`: where one lane stands in one node, as samples carry it; `to_state`: samples → their part of the states,
   a flat dict to be collected with `states.update(…)`
2. `headers.py`: what states say of the run: its size and tree, and what it had come to under earlier sizes
3. `table.py`: the flat dict ↔ a table of checked cursors
4. `progress.py`: a table → where each node stands in each lane, or an error; and what was delivered by now
5. `checks.py`: states and the present tree → what differs, or is missing
6. `saving.py`, `loading.py`: states ↔ files of all ranks
7. `joining.py`: states of several ranks → one, out of files or over torch.distributed, and whether all ranks agree
8. `lane_state.py`: the state of one lane's iterator, which a StatefulDataLoader asks for
"""

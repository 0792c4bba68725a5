"""The order of a lane's records: `source, lane → blocks, dealt over sizes of the run → positions`.

- `blocks.py`: how shards are cut into blocks, which records are of the part, and the order of a lane's blocks
- `deal.py`: how a size of the run deals blocks out to lanes, and what it leaves to the next
- `dealt_lane.py`: what one lane reads of that, and where it stands after so many records
"""

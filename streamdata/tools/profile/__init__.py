"""Where the time goes while samples are made.

1. a lane in this process, with its calls wrapped → `StageTimes` → seconds by source and stage
2. dataset, seconds → `make_profile` → these, and the rates of more and more workers → text, JSON

- `stage_times.py`: the stages, and the wrappers that time them.
- `make_profile.py`: the measurement, and what it says.
"""

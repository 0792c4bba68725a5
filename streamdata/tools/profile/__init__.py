"""Where the time of a worker goes.

1. a process's stack, some hundred times a second → `StageTimes` → seconds by source and stage
2. dataset, seconds → `make_profile` → those of a worker, and the rates of more and more workers → text, JSON

- `stage_times.py`: the stage that a stack shows, and the timer that looks at it.
- `make_profile.py`: the measurement, and what it says.
"""

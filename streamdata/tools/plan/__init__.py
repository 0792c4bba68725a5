"""Knowing before a run: `recipe and a number of samples → what each source gives, repeats and costs`.

1. source → `sample_source` → what some of its records are like, and what functions make of them
2. tree of blank records, topology, length → `RunCourse` → what the run itself takes of each source, and when it repeats
3. what was drawn, shares → `RunCourse.go_on` → the rest of the run, estimated
4. lengths of sampled documents → `straggler_loss` → what steps lose to their slowest rank, with and without balance
5. all of these → `Planner` → `RunPlan` → `plan_text`

- `make_plan.py`: the plan of a run, with its advice and with what a worker needs; and as text.
- `sampled.py`: tokens, samples and costs of some records of a source.
- `stragglers.py`: what of a step is lost to its slowest rank.
- `course.py`: a tree over blank records; how far the run comes: drawn, and after so many samples by rates.
"""

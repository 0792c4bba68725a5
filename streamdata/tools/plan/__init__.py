"""Knowing before a run: `recipe and a number of samples → what each source gives, repeats and costs`.

1. source → `sample_source` → what some of its records are like
2. tree, samples → `Stream.demand` → how much a run takes of each source → `Repeats.first` → when it repeats
3. tree, topology → `first_draws`, `lane_blocks` → what a lane draws first, and which blocks it reads
4. all of these → `make_plan` → `RunPlan` → `plan_text`, `plan_json`

- `make_plan.py`: the plan of a run, with its advice and with what a worker needs.
- `sampled.py`: tokens, samples and costs of some records of a source.
- `demand.py`: samples that a run takes of each source, its first repeat, its share over time.
- `draws.py`: the draws of a lane over a tree of blank records.
- `plan_text.py`: a plan as text and as JSON.
"""

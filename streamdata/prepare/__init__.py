"""Turns documents into stores, offline.

1. `inputs`: files → tasks, ranges of bytes → records
2. `extract`: record → texts and chats, by the sections of a config or by a known format
3. `encode`: texts → ids, by the tokenizer itself or a faster one that agrees with it
4. `documents`: texts and chats → ids and masks, within their limits
5. `output`: documents → rows → shards, published task by task
6. `worker`: task → marker, in processes or on a cluster
7. `run_directory`: markers → manifest, and the store as a whole
8. `pipeline`: inputs, config, tokenizer → a run of all of these

Beside them: `config` reads and checks a config, of which `presets` has some, `preview` reads first or stored records,
`finished_runs` checks and merges the outputs of runs.
"""

from streamdata.errors import PrepareError
from streamdata.prepare.config import PrepareConfig, load_config
from streamdata.prepare.finished_runs import merge
from streamdata.prepare.pipeline import Pipeline

__all__ = ["Pipeline", "PrepareConfig", "PrepareError", "load_config", "merge"]

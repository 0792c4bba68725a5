"""From documents to stores, offline.

1. `load_config`: YAML → how records become tokens
2. `inputs`: files → tasks, ranges of bytes → records
3. `sections`, `documents`, `encode`: record → texts and chats → ids and masks
4. `pack`, `output`: documents → rows → shards, published task by task
5. `local`, `on_ray`: tasks → processes → markers; `run_directory`: markers → manifest, and the store as a whole
6. `layout`: the paths of all these files
"""

from streamdata.prepare.config import PrepareConfig
from streamdata.prepare.errors import PrepareError
from streamdata.prepare.load_config import load_config
from streamdata.prepare.merge import merge
from streamdata.prepare.pipeline import Pipeline

__all__ = ["Pipeline", "PrepareConfig", "PrepareError", "load_config", "merge"]

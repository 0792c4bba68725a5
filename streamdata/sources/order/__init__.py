"""Which records a lane reads, and in which order: blocks, deals over sizes of a run, and leaps."""

"""The errors that a user can cause. Each message says who, where, what was expected, what was found, and what to do."""


class StreamdataError(Exception):
    """Any error that streamdata itself raises."""


class RecipeError(StreamdataError, ValueError):
    """A recipe cannot be read or built; the message gives file, line, column and path."""


class ShardError(StreamdataError, ValueError):
    """A shard, its sidecar or its index is damaged or has changed; the message gives file and place."""


class StoreError(StreamdataError, ValueError):
    """A token store is damaged, or lacks what is asked of it; the message gives file and key."""


class StateError(StreamdataError, ValueError):
    """States do not belong to this dataset, seed or topology, or are not states at all."""


class SourceError(StreamdataError, RuntimeError):
    """A source cannot deliver, such as one whose records were all dropped."""

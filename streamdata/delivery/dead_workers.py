"""What an error of a DataLoader says where a worker was killed: `error → with source and record`."""

from streamdata.mixing import MergedDataset


def note_dead_workers(error: Exception, dataset: MergedDataset) -> None:
    """Add to an error which workers were killed, and at which record each was, where a function of it was given one."""
    for pid, record in dataset.dead_workers().items():
        at = f"a function of it was last given {record}" if record else "no function of it was at a record"
        error.add_note(
            f"MergedDataset: worker process {pid} was killed; {at}\n"
            "  If for lack of memory, the system's log says so: take fewer workers or smaller batches."
        )

"""What leaves a DataLoader's worker: `error → whether torch raises it in the trainer, with its text`.

torch sends the class and the text, and calls the class with the text. That class may be one that cannot be pickled, of
which torch sends nothing: the batch is missing without an error. It may want other arguments, as `ExceptionGroup` does,
or have a text of its own, and then what was wrong, and where, is lost.
"""

import os
import pickle
import sys
import traceback
from multiprocessing.queues import Queue
from multiprocessing.reduction import ForkingPickler
from typing import Any, Final

_TEXT: Final = "the text of an error"


def reaches_trainer(error: BaseException) -> bool:
    """Whether an error of this process will say what it says where it is handled; only torch's workers hand it on.

    It is tried, as torch does it: what a class makes of a text, nothing but the class can say.
    """
    data = sys.modules.get("torch.utils.data")  # not imported: who has not imported it is no worker
    if data is None or data.get_worker_info() is None:
        return True
    wrapped = sys.modules["torch._utils"].ExceptionWrapper((type(error), error, None))
    wrapped.exc_msg = _TEXT
    try:
        pickle.loads(ForkingPickler.dumps(wrapped)).reraise()  # noqa: S301  made here
    except (Exception, SystemExit) as raised:
        return _says(raised)
    return False


def end_where_batches_are_lost() -> None:
    """End this worker process at a batch, or an error, that cannot be pickled: its trainer is told that a worker ended.

    Of what a collate function makes nothing else is known here. Without this there is a traceback on stderr, and the
    batch is missing: a pass ends as if it were whole, or the trainer waits for ever.
    """
    Queue._on_queue_feeder_error = staticmethod(_end_at_loss)  # type: ignore[attr-defined]  # noqa: SLF001  # its hook


def _end_at_loss(error: Exception, item: Any) -> None:
    traceback.print_exception(error)
    match item:
        case (int(), _):  # torch's, not of a queue of somebody else's
            sys.stderr.write(
                "streamdata: expected a batch that can be sent to the trainer, got one that cannot be pickled; the "
                "worker ends, or the batch would be missing\n"
                "  Let the collate function return, and raise, what can be pickled.\n"
            )
            sys.stderr.flush()
            os._exit(1)


def _says(error: BaseException) -> bool:
    try:
        return _TEXT in str(error)
    except (Exception, SystemExit):  # somebody else's `__str__`
        return False

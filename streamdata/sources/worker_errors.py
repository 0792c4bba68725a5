"""Errors that leave a DataLoader's worker: `error → whether torch raises it in the trainer, with its text`.

torch sends the class and the text, and calls the class with the text. That class may be one that cannot be pickled, of
which torch sends nothing: the batch is missing without an error. It may want other arguments, as `ExceptionGroup` does,
or have a text of its own, and then what was wrong, and where, is lost.
"""

import pickle
import sys
from multiprocessing.reduction import ForkingPickler
from typing import Final

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


def _says(error: BaseException) -> bool:
    try:
        return _TEXT in str(error)
    except (Exception, SystemExit):  # somebody else's `__str__`
        return False

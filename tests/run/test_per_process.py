"""What each process has for itself."""

import os
import pickle
import weakref
from concurrent.futures import ThreadPoolExecutor

from streamdata.run.per_process import PerProcess

left = []


def in_fork(function):
    """What a function writes in a forked process."""
    reading, writing = os.pipe()
    if not (pid := os.fork()):
        os.write(writing, repr(function()).encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    with os.fdopen(reading) as file:
        return file.read()


def test_a_value_is_made_once_in_a_process():
    """By whichever thread asks first; nothing is made before."""
    one = PerProcess(object)
    assert one.made is None
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda _: id(one.get()), range(99)))) == 1


def test_a_fork_makes_its_own_and_leaves_the_parents_alone():
    """Also where a thread of the parent was about to make it."""
    one = PerProcess(list, leave=left.append)
    one.get().append("of the parent")
    with one._lock:
        assert in_fork(lambda: (one.made, one.get(), left)) == "(None, [], [['of the parent']])"
    assert one.get() == ["of the parent"]


def test_what_the_parent_has_is_dropped_in_a_fork_unless_it_is_left():
    """What it has open is closed there, or stays open."""

    class Value:
        pass

    for leave, is_kept in ((None, False), (left.append, True)):
        one = PerProcess(Value, leave)
        there = weakref.ref(one.get())
        assert in_fork(lambda there=there: there() is not None) == repr(is_kept)
        left.clear()


def test_one_that_was_pickled_is_empty():
    """As its objects are sent to workers that are spawned."""
    one = PerProcess(list)
    one.get().append(1)
    assert pickle.loads(pickle.dumps(one)).get() == []

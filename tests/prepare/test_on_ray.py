"""A real cluster of two nodes on this machine; one of them is killed in the midst of a run."""

import fcntl
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamdata.prepare import PrepareError, worker
from streamdata.prepare.inputs import Task
from streamdata.prepare.run_directory import RunDirectory
from streamdata.prepare.worker import RunSpec
from tests.prepare.runs import PRETRAIN, documents, run, tree, write

CONFIG = PRETRAIN | {"task_bytes": 20_000, "packing": "bfd_split", "max_packed_len": 128}


@pytest.fixture(scope="module")
def cluster() -> Iterator[object]:
    """Two nodes of one core, this process connected."""
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as environment:
        warnings.simplefilter("ignore")  # ray's own
        environment.setenv("RAY_USAGE_STATS_ENABLED", "0")
        environment.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
        import ray
        from ray.cluster_utils import Cluster

        node = {"num_cpus": 1, "include_log_monitor": False}
        nodes = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
        # Before there is another node: a process may connect to any of them, and that one cannot be killed.
        ray.init(address=nodes.address, log_to_driver=False)
        nodes.add_node(**node)
        yield nodes
        ray.shutdown()
        nodes.shutdown()


def test_a_node_that_dies_changes_nothing(cluster: object, tokenizer: str, tmp_path: Path) -> None:
    """Its tasks are done by another; the output is the local engine's, byte for byte."""
    path = write(tmp_path / "texts.jsonl", documents(900))
    run(CONFIG, tokenizer, path, tmp_path / "local")
    killed = []

    def kill(progress: object) -> None:
        if not killed and len(list((tmp_path / "ray" / "tasks").glob("*[0-9].json"))) >= 3:
            node = next(node for node in cluster.list_all_nodes() if not node.is_head())
            cluster.remove_node(node, allow_graceful=False)
            killed.append(node)

    manifest = run(CONFIG, tokenizer, path, tmp_path / "ray", engine="ray", progress=kill)
    assert killed
    assert manifest["num_tasks"] > 20
    assert tree(tmp_path / "ray") == tree(tmp_path / "local")


def test_a_bad_record_ends_the_run_on_ray_too(
    cluster: object, tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its place, and the next run goes on; inputs may be named from the directory where it was started."""
    records = documents(200)
    write(tmp_path / "texts.jsonl", [*records[:150], {"text": 5}, *records[150:]])
    monkeypatch.chdir(tmp_path)
    path = "texts.jsonl"
    with pytest.raises(PrepareError, match=r"texts.jsonl:151: text: wrong type"):
        run(CONFIG, tokenizer, path, tmp_path / "ray", engine="ray")
    assert not (tmp_path / "ray" / "data").exists()
    run(CONFIG | {"max_bad": 1}, tokenizer, path, tmp_path / "ray", engine="ray")
    run(CONFIG | {"max_bad": 1}, tokenizer, path, tmp_path / "local")
    assert tree(tmp_path / "ray") == tree(tmp_path / "local")


def test_a_task_on_ray_holds_the_workers_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that takes the directory over waits for tasks that were not cancelled in time."""
    held: list[bool] = []
    directory = RunDirectory(tmp_path)
    directory.work.mkdir()

    class Looking:
        def do(self, *_: object) -> None:
            with (directory.work / "workers.lock").open() as lock, pytest.raises(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held.append(True)

    monkeypatch.setattr(worker, "_worker", lambda _: Looking())
    monkeypatch.chdir(tmp_path)
    assert worker._do_on_ray(RunSpec("{}", "", str(tmp_path), str(tmp_path)), Task(0, "", None, 0, 0)) is None
    assert held
    ended = RunSpec("{}", "", str(tmp_path / "gone"), str(tmp_path))
    assert isinstance(worker._do_on_ray(ended, Task(0, "", None, 0, 0)), FileNotFoundError)


def test_ray_that_is_not_there_is_named_with_its_extra(
    tokenizer: str, texts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As any optional library."""
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install torch-streamdata\[ray\]"):
        run(CONFIG, tokenizer, texts, tmp_path / "out", engine="ray")

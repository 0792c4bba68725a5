"""Each script of examples/trainers: stopped, resumed, and every row trained on once."""

import csv
import importlib.util
import json
import re
import runpy
from pathlib import Path

import pytest

from streamdata import PromptLedger
from tests.compat.jobs import (
    EPOCH,
    LIMIT_S,
    SCRIPTS,
    assert_each_once,
    killed_after,
    losses_by_hand,
    needs,
    run,
    trained,
)
from tests.launched import launch, script

ELASTIC = [(2, 10), (1, 20), (2, 10)]
"""Ranks and steps of each leg: 4 rows a batch, 240 rows."""


def test_no_script_has_more_than_70_lines() -> None:
    """Who reads one wants to see at once what to write; torchtitan has two protocols, TRL half of HF Trainer's.

    A loop with a ledger answers prompts too, and asynchronous trainers have two ends: each is run without a GPU.
    """
    lines = {path.name: len(path.read_text().splitlines()) for path in SCRIPTS.glob("*.py") if path.name != "tiny.py"}
    assert len(lines) == 15
    assert max(lines.pop(name) for name in ("titan_loader.py", "hf_trainer.py", "ledger_loop.py")) <= 90
    assert max(lines.pop(name) for name in ("trl_async_grpo.py", "verl_rollouter.py")) <= 140
    assert max(lines.values()) <= 70, lines


def test_the_page_names_every_script() -> None:
    """And no other."""
    page = (SCRIPTS / "README.md").read_text()
    assert set(re.findall(r"`(\w+\.py)`", page)) == {path.name for path in SCRIPTS.glob("*.py")}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("accelerate_loop", marks=needs("accelerate", "datasets")),
        pytest.param("verl_loader", marks=needs("verl")),
    ],
)
def test_a_loop_goes_on_with_other_ranks(tmp_path: Path, name: str) -> None:
    """Two ranks, one, two again."""
    for ranks, number in ELASTIC:
        run(name, tmp_path, "--steps", number, ranks=ranks)
    assert_each_once(tmp_path)


@needs("torchtitan")
def test_torchtitans_packed_rows_go_on_with_other_ranks(tmp_path: Path) -> None:
    """Within an epoch no row comes twice, after two none is missing: where it ends, it ends within a packed row."""
    for ranks, number in [(2, 8), (1, 16), (2, 4)]:
        run("titan_loader", tmp_path, "--steps", number, ranks=ranks)
    rows = trained(tmp_path)
    assert (len(rows), set(rows.values())) == (160, {1})
    run("titan_loader", tmp_path, "--steps", 60, ranks=1)
    assert trained(tmp_path).keys() == set(EPOCH)


@needs("megatron")
def test_a_blend_as_megatron_has_it_goes_on_with_other_ranks(tmp_path: Path) -> None:
    """Of 120 and 240 rows; the ranks are forks under torchrun's agent."""
    for ranks, number in [(2, 10), (1, 20), (2, 100)]:
        command = map(str, (SCRIPTS / "megatron_loop.py", tmp_path, "--steps", number))
        job = launch(tmp_path / "log", ranks, script, *command)
        job.join(LIMIT_S)
        assert job.exitcode == 0, (tmp_path / "log").read_text()[-3000:]
    rows = trained(tmp_path)
    assert (len(rows), set(rows.values())) == (360, {1})


@needs("accelerate", "datasets")
@pytest.mark.parametrize("ranks", [1, 2])
def test_hf_trainer_goes_on_within_an_epoch(tmp_path: Path, ranks: int) -> None:
    """With accumulation and an evaluation set: two epochs, each row twice. The loss of each source is logged."""
    run("hf_trainer", tmp_path, "--stop-after", 7, ranks=ranks)
    first, second = json.loads((tmp_path / "checkpoint-7" / "trainer_state.json").read_text())["log_history"][:2]
    by_hand = losses_by_hand(tmp_path, steps=1, accumulate=3)
    assert {name: first[f"loss_{name}"] for name in by_hand} == pytest.approx(by_hand, rel=1e-5)
    assert (second["step"], second.keys() >= {f"loss_{name}" for name in by_hand}) == (5, True)
    assert set(trained(tmp_path).values()) == {1}
    assert trained(tmp_path).total() == 7 * 3 * 4 * ranks
    output = run("hf_trainer", tmp_path, ranks=ranks)
    assert "eval_loss" in output
    assert_each_once(tmp_path, times=2)


@needs("accelerate", "datasets")
def test_hf_trainer_with_a_shorter_last_step(tmp_path: Path) -> None:
    """30 batches for each rank, of which the 8th step has 2: an epoch's end can be resumed from."""
    options = (tmp_path, "--accumulate", 4)
    run("hf_trainer", *options, "--stop-after", 8, ranks=2)
    run("hf_trainer", *options, ranks=2)
    assert_each_once(tmp_path, times=2)


@needs("accelerate", "datasets")
def test_hf_trainer_refuses_to_lose_the_shorter_last_step(tmp_path: Path) -> None:
    """Resumed within such an epoch, it would accumulate the last batches' gradients, and make no step of them."""
    run("hf_trainer", tmp_path, "--accumulate", 7, "--stop-after", 5, ranks=1)
    output = run("hf_trainer", tmp_path, "--accumulate", 7, ranks=1, fails=True)
    assert "of the 25 that are left the last 4 would accumulate gradients without a step" in output


@needs("lightning")
def test_lightning_goes_on_with_other_processes(tmp_path: Path) -> None:
    """Without a length, where it pulls a batch ahead; two processes, one, two. The loss of each source is logged."""
    for steps, devices in ((10, 2), (30, 1), (40, 2)):
        output = run("lightning_fit", tmp_path, "--max-steps", steps, "--devices", devices)
        assert "not resumable" not in output
        if steps == 10:
            by_hand = losses_by_hand(tmp_path, steps=5)
            with next(tmp_path.rglob("metrics.csv")).open() as file:
                logged = next(csv.DictReader(file))
            assert {name: float(logged[f"loss_{name}"]) for name in by_hand} == pytest.approx(by_hand, rel=1e-5)
    assert_each_once(tmp_path)


@needs("lightning")
def test_lightning_goes_on_within_its_epoch(tmp_path: Path) -> None:
    """With a length: 25 of 60 batches, then two epochs in all."""
    for steps in (25, 120):
        run("lightning_fit", tmp_path, "--max-steps", steps, "--steps-per-epoch", 60)
    assert_each_once(tmp_path, times=2)


@needs("accelerate", "trl", "datasets")
def test_trl_goes_on(tmp_path: Path) -> None:
    """Two processes, two epochs."""
    run("trl_sft", tmp_path, "--stop-after", 7, ranks=2)
    run("trl_sft", tmp_path, ranks=2)
    assert_each_once(tmp_path, times=2)


def test_a_loop_with_a_ledger_goes_on_with_more_prompts_side_by_side(tmp_path: Path) -> None:
    """Stopped between two checkpoints, then killed: prompts that were trained after the last one are trained again."""
    run("ledger_loop", tmp_path, "--steps", 12)
    killed_after("saved 20", tmp_path, "ledger_loop", "--side-by-side", 30)
    run("ledger_loop", tmp_path, "--side-by-side", 3)
    assert_each_once(tmp_path)


@needs("accelerate", "trl", "datasets")
def test_trls_asynchronous_trainer_goes_on_without_losing_a_prompt(tmp_path: Path) -> None:
    """Killed with its worker: of the epoch each prompt was trained, dropped or is given by the ledger, and once."""
    killed_after("saved 6", tmp_path, "trl_async_grpo")
    run("trl_async_grpo", tmp_path, "--max-steps", 15)
    rows = trained(tmp_path)
    training_set = runpy.run_path(str(SCRIPTS / "tiny.py"))["training_set"]
    ledger = PromptLedger(training_set(2))
    ledger.load_state_dict(json.loads((tmp_path / "checkpoint-15" / "ledger.json").read_text()))
    stats = ledger.stats()
    assert (len(rows), stats["done"]) == (30, 30)
    left = 240 - int(stats["done"] + stats["dropped"])
    rows.update(prompt.sample["row"] for prompt in ledger.take(left))
    assert set(rows.values()) == {1}
    assert rows.total() == 240 - stats["dropped"] < 240


@needs("verl", "tensordict", "hydra", "peft", "opentelemetry")
def test_verls_rollouter_goes_on_without_losing_a_prompt(tmp_path: Path) -> None:
    """Killed with answers in its queue and on their way: each prompt of the epoch is trained on once."""
    killed_after("saved 20", tmp_path, "verl_rollouter")
    run("verl_rollouter", tmp_path)
    assert_each_once(tmp_path)


@needs("ray", "pandas")
def test_ray_train_restarts_after_a_killed_worker(tmp_path: Path) -> None:
    """From its last checkpoint: what was trained after that comes again, and no more."""
    run("ray_train", tmp_path, "--steps", 30, "--kill-at", 8)
    notes = [path.read_text().splitlines()[0] for path in (tmp_path / "rows").glob("*.txt")]
    assert sorted(notes) == ["resumed 0", "resumed 0", "resumed 5", "resumed 5"]
    assert_each_once(tmp_path)


@needs("verl")
def test_verl_builds_its_loader_as_the_script_does() -> None:
    """Its own trainer is not run here, so what it does is read."""
    (folder,) = importlib.util.find_spec("verl").submodule_search_locations
    source = Path(folder, "trainer", "ppo", "ray_trainer.py").read_text()
    built = source.partition("self.train_dataloader = StatefulDataLoader(")[2].partition(")\n")[0]
    assert {"drop_last=True", "sampler=train_sampler", "collate_fn=collate_fn"} <= set(re.findall(r"\w+=\w+", built))
    assert 'local_global_step_folder, "data.pt")' in source
    assert "torch.save(dataloader_state_dict, dataloader_local_path)" in source

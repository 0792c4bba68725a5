from pathlib import Path

import pytest

from examples import grpo_loop, make_demo_data


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> str:
    """As much of the example data as the recipe names."""
    root = tmp_path_factory.mktemp("demo")
    files = make_demo_data.source_files()[:12]
    docs = [document for path in files for document in make_demo_data.documents_in(path) if document["kind"] == "doc"]
    make_demo_data.write_shards(root / "docs", docs, 2)
    make_demo_data.write_prompts(root / "prompts.parquet", docs)
    make_demo_data.train_tokenizer(root / "tokenizer", (document["text"] for document in docs))
    return str(root)


def test_a_run_stopped_within_groups_goes_on_there(demo: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The groups and their advantages are those of the uninterrupted run."""
    grpo_loop.main(demo)
    first, second = capsys.readouterr().out.splitlines()
    assert any(0 < int(count) < grpo_loop.COPIES for count in first.partition("[")[2].partition("]")[0].split(","))
    assert "resumed: " in second
    same, of, number = second.split()[1:4]
    assert (same, of) == (number, "of")
    assert int(number) > 30


def test_groups_are_whole_and_centred(demo: str) -> None:
    """Each has all its copies, whose advantages add up to nothing; no prompt comes twice in so few."""
    groups = grpo_loop.Trainer(demo).train(12)
    assert len({uid for uid, _ in groups}) == len(groups) > 5
    assert all(len(values) == grpo_loop.COPIES and abs(sum(values)) < 1e-4 for _, values in groups)


def test_a_checkpoint_is_small_plain_json(demo: str) -> None:
    """Whatever the number of prompts."""
    trainer = grpo_loop.Trainer(demo)
    trainer.train(3)
    assert len(trainer.save()) < 5000
    assert Path(demo, "cache").is_dir()

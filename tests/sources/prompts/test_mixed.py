import pytest
from torch.utils.data import DataLoader

from streamdata import MergedDataset
from streamdata.delivery.sampler import ResumableDistributedSampler
from streamdata.sources.prompts import RLHFDataset, collate_fn
from tests.sources.prompts.prompt_files import mixed, sums
from tests.streams import Numbers, assert_exact_resume, loaded, plain


def merged(path, tokenizer, processor=None, **config):
    """Prompts beside numbers."""
    prompts = RLHFDataset(path, tokenizer, {"max_prompt_length": 64, **config}, processor)
    prompts.name, prompts.percent = "prompts", 3.0
    return MergedDataset([prompts, Numbers("numbers", 7)], seed=5)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_prompts_resume_exactly(num_workers, tokenizer, tmp_path):
    """In the middle of a group of copies too."""
    path = sums(tmp_path / "a.parquet", 9)
    stream = assert_exact_resume(lambda: merged(path, tokenizer, repeat=3), num_workers=num_workers)
    uids = [sample["uid"] for (sample,) in stream if "uid" in sample]
    if num_workers == 0:
        assert [uids[start : start + 3] for start in range(0, 30, 3)] == [
            [uids[start]] * 3 for start in range(0, 30, 3)
        ]


def test_images_resume_exactly(qwen, tmp_path):
    """Tensors and media alike."""
    path = mixed(tmp_path / "a.parquet")
    assert_exact_resume(lambda: merged(path, qwen.tokenizer, qwen), steps=8, beyond=4)


def test_filtered_rows_are_never_drawn(tokenizer, tmp_path):
    """The stream has those that stay, each once in an epoch."""
    path = sums(tmp_path / "a.parquet", 12, words=2)
    dataset = merged(path, tokenizer, max_prompt_length=45)
    dataset.cyclic = False
    drawn = [sample["index"] for (sample,) in loaded(dataset, 1) if "uid" in sample]
    assert sorted(drawn) == [100, 101, 102]


def test_the_sampler_resumes_exactly(tokenizer, tmp_path):
    """Under a plain DataLoader, in batches of dicts of tensors."""
    dataset = RLHFDataset(sums(tmp_path / "a.parquet", 12), tokenizer, {"max_prompt_length": 64})

    def batches(sampler):
        loader = DataLoader(dataset, batch_size=3, sampler=sampler, collate_fn=collate_fn)
        return [plain({key: list(column) for key, column in batch.items()}) for batch in loader]

    whole = batches(ResumableDistributedSampler(dataset, num_replicas=1, rank=0))
    state = ResumableDistributedSampler(dataset, num_replicas=1, rank=0).state_dict(delivered=6)
    again = ResumableDistributedSampler(dataset, num_replicas=1, rank=0)
    again.load_state_dict(state)
    assert batches(again) == whole[2:]


@pytest.mark.parametrize("taken", range(13))
def test_the_sampler_resumes_within_a_group(taken, tokenizer, tmp_path):
    """Of the copies of a prompt, which stay side by side."""
    dataset = RLHFDataset(sums(tmp_path / "a.parquet", 4), tokenizer, {"max_prompt_length": 64, "repeat": 3})
    samplers = [ResumableDistributedSampler(dataset, num_replicas=1, rank=0) for _ in range(2)]
    whole = [dataset[number]["uid"] for number in samplers[0]]
    assert whole == [uid for uid in whole[::3] for _ in range(3)]
    samplers[1].load_state_dict(samplers[0].state_dict(delivered=taken))
    assert [dataset[number]["uid"] for number in samplers[1]] == whole[taken:]

from collections import Counter
from itertools import islice

import pytest
from torch.utils.data import DataLoader

from streamdata import MergedDataset, instantiate_from_yaml, mixed_collate, to_state
from streamdata.chats.prompts import RLHFDataset, prompt_collate
from streamdata.delivery.sampler import ResumableDistributedSampler
from tests.chats.prompts.prompt_files import IMAGES, image, mixed, sums, user, write
from tests.streams import Numbers, assert_exact_resume, loaded, plain, resumed


def merged(path, tokenizer, processor=None, **config):
    """Prompts beside numbers."""
    config = {"max_prompt_length": 64, **config}
    prompts = RLHFDataset(path, tokenizer, config, processor, name="prompts", percent=3.0)
    return MergedDataset([prompts, Numbers("numbers", 7)], seed=5)


@pytest.mark.parametrize("num_workers", [0, 2, 3])
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


def test_it_resumes_within_a_group_in_real_workers(tokenizer, tmp_path):
    """Of a DataLoader, which inherit nothing: the mixture is pickled whole, with its states."""
    path, states = sums(tmp_path / "a.parquet", 9), {}
    whole = list(islice(loaded(merged(path, tokenizer, repeat=3), 2, batch_size=2), 11))
    for batch in whole[:5]:
        states.update(to_state(batch))
    taken = Counter(sample["__workerid__"] for batch in whole[:5] for sample in batch if "uid" in sample)
    assert any(count % 3 for count in taken.values())
    again = resumed(lambda: merged(path, tokenizer, repeat=3), states)
    options = {"num_workers": 2, "multiprocessing_context": "forkserver", "batch_size": 2}
    rest = islice(DataLoader(again, collate_fn=mixed_collate, **options), 6)
    assert plain(list(rest)) == plain(whole[5:])


def test_a_recipe_names_tokenizer_and_processor(llava, tmp_path):
    """One by its target, the other by its path, beside another source; the items are those of the objects."""
    path = write(tmp_path / "a.parquet", [{"prompt": user("<image>What?"), "images": [image(1)]}], images=IMAGES)
    llava.save_pretrained(tmp_path / "llava")
    (tmp_path / "recipe.yaml").write_text(f"""
target: streamdata.MergedDataset
params:
  datasets:
    - target: streamdata.RLHFDataset
      name: prompts
      percent: 1
      params:
        data_files: {path}
        tokenizer:
          target: transformers.AutoTokenizer.from_pretrained
          params: {{pretrained_model_name_or_path: {tmp_path / "llava"}}}
        processor: {tmp_path / "llava"}
        config: {{max_prompt_length: 64, chat_template_func: null}}
""")
    sample = next(iter(instantiate_from_yaml(str(tmp_path / "recipe.yaml"))))
    expected = plain(RLHFDataset(path, llava.tokenizer, {"max_prompt_length": 64}, llava)[0])
    assert {key: value for key, value in plain(sample).items() if key[:2] != "__"} == expected


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
        loader = DataLoader(dataset, batch_size=3, sampler=sampler, collate_fn=prompt_collate)
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

import os

import pytest
from omegaconf import OmegaConf

from streamdata.chats.settings import WHO, PromptConfig
from tests.chats.prompts.verl_sections import VERL_SECTIONS


def read_config(config):
    """As the dataset reads it."""
    return PromptConfig.read(config, WHO)


def test_defaults_are_those_that_users_know():
    """As written in the table of keys."""
    config = read_config({})
    assert (config.prompt_key, config.image_key, config.video_key) == ("prompt", "images", "videos")
    assert (config.max_prompt_length, config.truncation, config.truncation_media) == (1024, "error", "error")
    assert (config.filter_overlong_prompts, config.filter_prompts, config.mode) == (True, True, "tensors")
    assert (config.return_raw_chat, config.return_full_prompt, config.return_multi_modal_inputs) == (False, False, True)
    assert (config.repeat, config.max_samples, config.shuffle, config.need_tools_kwargs) == (1, -1, False, False)
    assert config.chat_template_func is None
    assert dict(config.apply_chat_template_kwargs) == {}
    assert config.filter_overlong_prompts_workers == max(1, os.cpu_count() // 4)
    assert (config.tool_config_path, config.cache_dir, config.use_shm, config.seed) == (None, None, False, None)


def test_a_dictconfig_is_a_mapping():
    """Its interpolations are resolved, and a null means the default."""
    config = OmegaConf.create({"limit": 7, "rlhf": {"max_prompt_length": "${limit}", "seed": None}})
    assert read_config(config.rlhf) == PromptConfig(max_prompt_length=7)


def test_a_path_is_as_good_as_its_text(tmp_path):
    """A recipe's variables may be paths."""
    given = {"cache_dir": tmp_path, "tool_config_path": tmp_path / "tools.yaml"}
    config = read_config(OmegaConf.create(given))
    assert (config.cache_dir, config.tool_config_path) == (str(tmp_path), str(tmp_path / "tools.yaml"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_prompt_lenght": 3}, "did you mean 'max_prompt_length'"),
        ({"custom_cls": {"path": "x.py"}}, "`target`"),
        ({"custom_cls": "x.py"}, "a mapping of path and name"),
        ({"truncation": "both"}, "truncation"),
        ({"truncation_media": "drop_all"}, "did you mean 'drop_"),
        ({"mode": "tensor"}, "did you mean 'tensors'"),
        ({"max_prompt_length": 0}, "at least 1"),
        ({"max_prompt_length": "1024"}, "at least 1"),
        ({"repeat": 0}, "at least 1"),
        ({"filter_overlong_prompts_workers": 0}, "at least 1"),
        ({"max_samples": 0}, "-1 for all"),
        ({"max_samples": -2}, "at least -1"),
        ({"seed": "x"}, "at least 0"),
        ({"shuffle": "no"}, "true or false"),
        ({"prompt_key": 3}, "a text"),
        ({"chat_template_func": "module.function"}, "target: module.function"),
        ({"apply_chat_template_kwargs": ["x"]}, "a mapping"),
        ({"apply_chat_template_kwargs": {"tokenize": True}}, "tokenize"),
        ({"apply_chat_template_kwargs": {"continue_final_message": True}}, "continue_final_message"),
        ({"apply_chat_template_kwargs": {3: 1}}, "what the template takes"),
        ({"apply_chat_template_kwargs": {"add_generation_prompt": "no"}}, "true or false"),
        ({"apply_chat_template_kwargs": {("{a}",): 1}}, r"takes, not \[\('\{a\}',\)\]"),
        ({"tool_config_path": 3}, "a text as tool_config_path, got 3"),
        ({"cache_dir": True}, "a text as cache_dir, got True"),
        ({"use_shm": 1}, "true or false as use_shm"),
        ([("prompt_key", "x")], "expected a mapping"),
    ],
)
def test_what_is_not_allowed_is_refused(given, message):
    """By name, with what was expected and a guess at what was meant."""
    with pytest.raises(ValueError, match=message):
        read_config(given)


def test_all_unknown_keys_are_named_at_once():
    """A config is mended in one go."""
    with pytest.raises(ValueError, match=r"'promt_key'.*'train_file', did you mean 'train_files'"):
        read_config({"promt_key": "x", "prompt_key": "prompt", "train_file": None})


def test_all_that_is_wrong_is_named_at_once():
    """Unknown keys, and values of several settings."""
    with pytest.raises(ValueError, match="'samplr'") as caught:
        read_config({"samplr": None, "repeat": 0, "mode": "tensor", "function_tool_path": "x.py"})
    assert "Write their schemas to a file, and name it as tool_config_path." in str(caught.value)
    assert "at least 1 as repeat, got 0\n" in str(caught.value)
    assert "tensors, raw as mode, got 'tensor', did you mean 'tensors'?\n" in str(caught.value)


def test_keys_of_nobody_are_named_and_passed_over(caplog):
    """A section may hold what a sampler or reward of the user's own reads; what is near a known key is a slip."""
    assert read_config({"my_curriculum": 3, "n_shots": 1, "train_files": "x"}) == PromptConfig()
    (record,) = caplog.records
    assert "ignores the keys ['my_curriculum', 'n_shots']" in record.getMessage()


@pytest.mark.parametrize("version", VERL_SECTIONS)
def test_verls_whole_section_is_a_config(version, caplog):
    """As its trainer's defaults have it; nothing is said of keys that are the trainer's."""
    section = OmegaConf.create({"data": VERL_SECTIONS[version]}).data
    config = read_config(section)
    assert (config.max_prompt_length, config.filter_overlong_prompts, config.shuffle) == (512, False, True)
    assert (config.image_patch_size, config.seed, config.return_raw_chat) == (14, None, version == "0.9.1")
    assert not caplog.records


def test_the_class_that_verl_loaded_may_stand_in_its_section():
    """It is this one; in a recipe a class is the target."""
    section = {"custom_cls": {"path": "pkg://streamdata", "name": "RLHFDataset"}}
    assert read_config(section) == PromptConfig()
    with pytest.raises(ValueError, match="custom_cls to name RLHFDataset, got 'Mine'"):
        read_config({"custom_cls": {"path": "x.py", "name": "Mine"}})


def test_a_number_that_is_no_choice_is_told_the_choices():
    """They have no quotes, as texts have."""
    with pytest.raises(ValueError, match="expected one of 3, 4 as position_rows, got 5"):
        PromptConfig.read({"position_rows": 5}, "RLHFDataset")

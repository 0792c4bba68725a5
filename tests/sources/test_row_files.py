"""Files of prompts and conversations in stores."""

import pickle
from pathlib import Path

import pytest

from streamdata import RLHFDataset, SFTChatDataset
from streamdata.recipe.named_source import for_all
from tests.chats.prompts.prompt_files import user, write
from tests.io.servers import s3_server
from tests.text.chat_templates import CHATML, chat_tokenizer


@pytest.mark.parametrize("of_top", [False, True])
@pytest.mark.parametrize("cls", [RLHFDataset, SFTChatDataset])
def test_files_of_a_store_are_read_by_its_settings(tmp_path, cls, of_top):
    """Those of the source, or in a recipe of the mixture above it."""
    answer = [] if cls is RLHFDataset else [{"role": "assistant", "content": "b"}]
    path = write(tmp_path / "a.parquet", [{"prompt" if cls is RLHFDataset else "messages": user("a") + answer}] * 2)
    tokenizer = chat_tokenizer(tmp_path / "t", CHATML)
    tokenizer.pad_token = tokenizer.eos_token
    with s3_server({"bucket/a.parquet": Path(path).read_bytes()}) as server:
        options = {"storage_options": {"endpoint": server.url, "anonymous": True, "region": "nowhere"}}
        with for_all(options if of_top else {}):
            dataset = cls(
                ["s3://bucket/a.parquet"],
                tokenizer,
                {"cache_dir": str(tmp_path / "cache"), "truncation": "right"},
                **({} if of_top else options),
            )
        assert len(server.log) > 0
    assert len(pickle.loads(pickle.dumps(dataset))) == 2

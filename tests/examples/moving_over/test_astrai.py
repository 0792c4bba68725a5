"""What `examples/moving_over` says of AstrAI, runs."""

import json
import runpy
from pathlib import Path

from streamdata import DatasetFactory
from tests.text.chat_templates import chat_tokenizer

MOVING_OVER = Path(__file__).parents[3] / "examples" / "moving_over"


def test_the_script_runs(tmp_path, monkeypatch, capsys):
    """From chats, by AstrAI's configuration, to windows of a class of one's own."""
    monkeypatch.setattr(DatasetFactory, "classes", dict(DatasetFactory.classes))
    chat = {"messages": [{"role": "user", "content": "one two"}, {"role": "assistant", "content": "three"}]}
    (tmp_path / "chats.jsonl").write_text(f"{json.dumps(chat)}\n" * 40)
    chat_tokenizer(tmp_path / "draft").save_pretrained(tmp_path / "tokenizer")
    paths = [str(tmp_path / name) for name in ("chats.jsonl", "tokenizer", "out")]
    monkeypatch.setattr("sys.argv", ["astrai.py", *paths])
    runpy.run_path(str(MOVING_OVER / "astrai.py"))
    first, second = capsys.readouterr().out.splitlines()
    assert "tokens of sequence, loss_mask, position_ids" in first
    assert second == "the first window has the fields input_ids, position_ids, target_ids"

import subprocess
import sys
from pathlib import Path

import pytest

from tests.compat.jobs import ENVIRONMENT, ROOT, SCRIPTS, needs

STEPS = 4
COMPARE = f"""
import sys
sys.path.insert(0, {str(SCRIPTS)!r})
import torch
from itertools import islice
from tiny import BATCH_SIZE, training_set
from trl_sft import options, tiny_llama, trainer
from streamdata import StreamLoader
from streamdata.compat import StreamCallback

fixed = dict(learning_rate=1e-2, lr_scheduler_type="constant", max_grad_norm=0.0, weight_decay=0.0, max_steps={STEPS})
job = trainer(options(sys.argv[1], save_strategy="no", **fixed), StreamCallback())
job.train()
theirs = [[entry["loss"], entry["loss_rows_from_0"], entry["loss_rows_from_120"]]
          for entry in job.state.log_history if "loss" in entry]

model = tiny_llama()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
ours = []
for batch in islice(StreamLoader(training_set(2), BATCH_SIZE, num_workers=2), {STEPS}):
    losses = torch.stack([model(input_ids=row[None], labels=row[None]).loss for row in batch["input_ids"]])
    losses.mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    low = batch["row"] < 120
    ours.append([part.mean().item() for part in (losses, losses[low], losses[~low])])
print(theirs, ours)
assert len(theirs) == {STEPS} and len(set(map(tuple, ours))) == {STEPS}
assert torch.allclose(torch.tensor(theirs), torch.tensor(ours), rtol=1e-5), (theirs, ours)
"""

PACKED = f"""
import sys
sys.path.insert(0, {str(SCRIPTS)!r})
import torch
from tiny import NUM_ROWS, Rows
from trl_sft import options, tiny_llama, trainer
from streamdata import MergedDataset, PackTokens, Pad, StreamLoader, TensorCollate, named
from streamdata.compat import StreamCallback

class Documents(Rows):
    def __getitem__(self, index):
        row = super().__getitem__(index)
        labels = torch.where(torch.arange(16) == 0, -100, row["labels"])  # no document begins with what is trained
        return row | {{"row": torch.full((16,), row["row"]), "labels": labels}}

dataset = MergedDataset([named(Documents(), name="rows", percent=1)], customized_yield_fn=PackTokens(48), seed=1)
fields = {{"row": Pad(), "input_ids": Pad(), "position_ids": Pad(), "labels": Pad(value=-100)}}
loader = StreamLoader(dataset, 2, collate=TensorCollate(fields, default="drop"))
job = trainer(options(sys.argv[1], save_strategy="no", max_steps=1), StreamCallback())
job.get_train_dataloader = lambda: loader
job.stream = dataset
job.train()
[theirs] = [entry["loss"] for entry in job.state.log_history if "loss" in entry]

rows = next(iter(StreamLoader(dataset, 2, collate=TensorCollate(fields, default="drop"))))["input_ids"].view(-1, 16)
alone = torch.stack([tiny_llama()(input_ids=row[None], labels=row[None]).loss for row in rows]).mean().item()
joined = tiny_llama()(input_ids=rows.view(2, 48), labels=rows.view(2, 48)).loss.item()
print(theirs, alone, joined)
assert abs(theirs - alone) < 1e-5 < abs(theirs - joined)
"""

PAIRS = f"""
import json
import os
import sys
from pathlib import Path
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer
from streamdata import StreamLoader, instantiate_from_yaml

os.chdir(sys.argv[1])
rows = [dict(prompt=[dict(role="user", content="a b")], chosen=[dict(role="assistant", content="c " * (n + 1))],
             rejected=[dict(role="assistant", content="d e")]) for n in range(9)]
Path("pairs.jsonl").write_text("".join(json.dumps(row) + "\\n" for row in rows))
words = Tokenizer(models.WordLevel({{word: n for n, word in enumerate("a b c d e <pad>".split())}}, "<pad>"))
words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="e", pad_token="<pad>")
tokenizer.chat_template = "{{% for m in messages %}}{{{{ m.content }}}} {{% endfor %}}"
tokenizer.save_pretrained("words")
Path("pairs.yaml").write_text(json.dumps(dict(target="streamdata.MergedDataset", params=dict(datasets=[dict(
    target="streamdata.PreferenceDataset", name="pairs", percent=1,
    params=dict(data_files="pairs.jsonl", tokenizer="words", config=dict(max_length=16)))]))))
page = Path({str(ROOT / "docs/guides/trainers/trl.md")!r}).read_text()
exec(page.split("## DPO")[1].split("```")[1].partition("\\n")[2])

torch.manual_seed(0)
sizes = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
model, reference = (LlamaForCausalLM(LlamaConfig(vocab_size=6, **sizes)) for _ in range(2))
batch = next(iter(StreamLoader(instantiate_from_yaml("pairs.yaml"), batch_size=4)))
ours = []
for side in ("chosen", "rejected"):
    ids, mask = batch[side + "_input_ids"], batch[side + "_loss_mask"]
    logits = model(input_ids=ids, attention_mask=batch[side + "_attention_mask"]).logits[:, :-1]
    each = logits.log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]
    ours.append((each * mask[:, 1:]).sum(1).mean().item())
options = DPOConfig(sys.argv[1], max_steps=1, logging_steps=1, report_to="none", use_cpu=True, bf16=False,
                    ignore_data_skip=True, save_strategy="no")
job = StreamDPOTrainer(model, reference, args=options, train_dataset=unread, processing_class=tokenizer)
job.train()
[theirs] = [[entry["logps/chosen"], entry["logps/rejected"]] for entry in job.state.log_history if "loss" in entry]
print(theirs, ours)
assert torch.allclose(torch.tensor(theirs), torch.tensor(ours), rtol=1e-4), (theirs, ours)
"""


@needs("accelerate", "trl", "datasets")
@pytest.mark.parametrize("script", [COMPARE, PACKED, PAIRS], ids=["rows", "packed", "pairs"])
def test_first_losses_equal_those_of_the_same_samples_by_hand(tmp_path: Path, script: str) -> None:
    """TRL trains on our samples as they are; of each source, too; no token of a packed row sees another document."""
    job = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert job.returncode == 0, job.stdout + job.stderr[-3000:]

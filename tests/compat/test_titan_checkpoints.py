import subprocess
import sys
from pathlib import Path

from tests.compat.jobs import ENVIRONMENT, EPOCH, ROOT, SCRIPTS, needs, trained

TRAIN = f"""
import sys
sys.path.insert(0, {str(SCRIPTS)!r})
from pathlib import Path
import torch
from torch import distributed
from torchtitan.components.checkpointer.dcp import CheckpointManager
from tiny import note
from titan_loader import FLAT, TitanLoader

class Part:
    step = 0
    def state_dict(self):
        return {{type(self).__name__: self.step}}
    def load_state_dict(self, state):
        self.step = state[type(self).__name__]
    def init_cache_state_dict(self):
        pass

class Optimizer(Part): ...
class Schedule(Part): ...
class Job(Part): ...

folder, job = sys.argv[1], Job()
distributed.init_process_group("gloo")
rank, size = distributed.get_rank(), distributed.get_world_size()
sizes = {{"max_context_length": 32, "num_tokens_per_batch": 64}} if FLAT else {{"seq_len": 32, "local_batch_size": 2}}
loader = TitanLoader.Config().build(dp_rank=rank, dp_world_size=size, tokenizer=None, **sizes)
checkpoints = CheckpointManager.Config(enable=True, interval=5, keep_latest_k=0, last_save_model_only=False).build(
    dataloader=loader, model_parts=[torch.nn.Linear(1, 1)], optimizers=Optimizer(), lr_schedulers=Schedule(),
    states={{"train_state": job}}, sd_adapter=None, base_folder=folder)
checkpoints.load(step=-1)
batches = iter(loader)
while job.step < int(sys.argv[2]):
    job.step += 1
    inputs, labels = next(batches)
    note(folder, *inputs["input"][(inputs["positions"] == 0) & (labels >= 0)].tolist())
    checkpoints.save(job.step, last_step=job.step == int(sys.argv[2]))
checkpoints.close()
if FLAT:
    loader.close()
distributed.destroy_process_group()
"""


@needs("torchtitan")
def test_torchtitans_own_checkpoints_go_on_with_other_ranks(tmp_path: Path) -> None:
    """Two ranks with 10 steps, then one: what its CheckpointManager saves and loads of our loader.

    Within an epoch no row comes twice, after two none is missing.
    """
    script = tmp_path / "job.py"
    script.write_text(TRAIN)
    for ranks, steps, num_rows in ((2, 10, 80), (1, 30, 160), (1, 80, 240)):
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        job = subprocess.run(
            [sys.executable, "-W", "ignore", *launcher, str(script), str(tmp_path), str(steps)],
            cwd=ROOT,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert job.returncode == 0, job.stdout + job.stderr[-3000:]
        rows = trained(tmp_path)
        assert len(rows) == num_rows
        assert steps == 80 or set(rows.values()) == {1}
    assert rows.keys() == set(EPOCH)

import subprocess
import sys
from pathlib import Path

from tests.compat.jobs import ENVIRONMENT, ROOT, SCRIPTS, needs

MAKE = f"""
import sys
sys.path.insert(0, {str(SCRIPTS)!r})
from pathlib import Path
import verl
from omegaconf import OmegaConf
from verl.trainer.ppo.utils import create_rl_dataset
from verl_loader import words_and_prompts

path = Path(sys.argv[1], "prompts.parquet")
tokenizer = words_and_prompts(path)
settings = OmegaConf.load(Path(verl.__file__).parent / "trainer" / "config" / "data" / "legacy_data.yaml")
ours = {{"custom_cls": {{"path": {str(SCRIPTS / "verl_loader.py")!r}, "name": "RLHFDataset"}}, "max_prompt_length": 16}}
data = OmegaConf.create({{"data": OmegaConf.merge(settings, ours)}}).data
assert len(create_rl_dataset(str(path), data, tokenizer, None, max_samples=-1)) == 240
few = create_rl_dataset([str(path)], data, tokenizer, None, max_samples=7)
assert len(few) == 7
assert few[0]["raw_prompt"] and few[0]["input_ids"].shape == (16,)
"""


@needs("verl", "tensordict")
def test_verl_makes_our_dataset_of_its_own_settings(tmp_path: Path) -> None:
    """By its own function: the class that `data.custom_cls` names gets all of its section `data`."""
    job = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", MAKE, str(tmp_path)],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert job.returncode == 0, job.stdout + job.stderr[-3000:]

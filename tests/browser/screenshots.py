"""Makes the pictures of the README anew: `.venv-browser/bin/python -m tests.browser.screenshots demo_data docs`.

`show_samples.png` and `show_mixture.png` are pages of `show --browser`, `plan.png` is what `plan` prints on a terminal.
"""

import contextlib
import io
import os
import pty
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from streamdata import StreamLoader, instantiate_from_yaml, mixed_collate
from streamdata.tools.show.streams import MixtureSamples, Place
from tests.browser.chromium import chromium
from tests.browser.looked_at import served

RECIPE = Path(__file__).parents[2] / "configs" / "demo.yaml"
SAVED = (40, 90, 140)
MOST_BYTES = 200_000
TERMINAL = """<!doctype html><meta charset="utf-8"><style>
body {{ margin: 0; background: #11151c; color: #d6dbe4; width: max-content; padding: 14px 18px; }}
pre {{ font: 13px/1.35 "DejaVu Sans Mono", monospace; margin: 0; }}
{stylesheet}
</style><pre>{code}</pre>"""


def open_read(browser, url):
    """Open a page, and wait until what it shows is read."""
    browser.open(url)
    while browser.text("h1") == "Reading …":
        time.sleep(0.1)


def save(browser, path, width, height):
    """What is in sight, in few enough colours to be small."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    picture = Image.open(io.BytesIO(browser.driver.get_screenshot_as_png())).convert("RGB")
    picture.quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    assert path.stat().st_size <= MOST_BYTES, f"{path}: {path.stat().st_size:,} bytes"


def browsed(data):
    """The demo's run, with states of some of its steps."""
    loader = StreamLoader(instantiate_from_yaml(RECIPE, variables={"data": data}), batch_size=8, collate=mixed_collate)
    states = {}
    for number, _ in enumerate(islice(loader, SAVED[-1]), 1):
        if number in SAVED:
            states[f"step-{number}"] = loader.state_dict()
    dataset = instantiate_from_yaml(RECIPE, variables={"data": data})
    place = Place(states=[*states.values()], state_names=[*states], batch=8, step=70)
    return MixtureSamples(dataset, place).browsed(RECIPE.name, 16)


def printed(command):
    """What a command prints where its output is a terminal: with colours."""
    leader, follower = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "118", "PYTHONPATH": str(RECIPE.parents[1])}
    with subprocess.Popen(command, stdout=follower, stderr=subprocess.DEVNULL, env=environment):
        os.close(follower)
        parts = []
        with contextlib.suppress(OSError):  # which is how a terminal says that nobody writes any more
            while part := os.read(leader, 1 << 16):
                parts.append(part)
    os.close(leader)
    return b"".join(parts).decode().replace("\r\n", "\n")


def plan_page(data, path):
    """What the terminal shows, as a page."""
    command = [sys.executable, "-m", "streamdata", "plan", RECIPE, "--var", f"data={data}", "--samples", "12000"]
    console = Console(record=True, width=118, file=io.StringIO())
    shown = f"$ streamdata plan configs/demo.yaml --var data=demo_data --samples 12000\n{printed(command)}"
    console.print(Text.from_ansi(shown), soft_wrap=True)
    path.write_text(console.export_html(theme=MONOKAI, code_format=TERMINAL, inline_styles=False))


def main(data, docs):
    """Writes all of them."""
    with chromium() as browser, tempfile.TemporaryDirectory() as folder:
        with served(browsed(data)) as url:
            open_read(browser, url)
            save(browser, Path(docs) / "show_samples.png", 1280, 860)
            open_read(browser, f"{url}mixture")
            save(browser, Path(docs) / "show_mixture.png", 1280, 590)
        plan_page(data, Path(folder) / "plan.html")
        browser.open(f"file://{folder}/plan.html")
        width, height = browser.run("return [document.body.scrollWidth, document.body.scrollHeight]")
        save(browser, Path(docs) / "plan.png", width, height)


if __name__ == "__main__":
    main(*sys.argv[1:])

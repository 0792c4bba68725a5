"""Makes the pictures of `show` in the guide: `python -m tests.browser.pictures demo_data`, after `make demo`.

Text in them is as large as the page's: the terminal is drawn as SVG, the browser's page is as wide as the guide.
"""

import argparse
import io
import re
from pathlib import Path

from PIL import Image
from rich.console import Console

from streamdata import instantiate_from_yaml
from streamdata.tools.show.model import IN_TERMINAL, ON_PAGE
from streamdata.tools.show.page import write_page
from streamdata.tools.show.streams import MixtureSamples, Place
from streamdata.tools.show.terminal import SamplePrinter
from tests.browser.chromium import chromium

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
WIDTH, HEIGHT = 760, 640
"""Pixels."""


def main() -> None:
    """Draws both."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("demo_data", help="the folder that make demo has written")
    data = parser.parse_args().demo_data

    def page(source, count, limits):
        dataset = instantiate_from_yaml("configs/demo.yaml", variables={"data": data})
        return MixtureSamples(dataset, Place(source=source), limits).page("configs/demo.yaml", count)

    console = Console(file=io.StringIO(), record=True, width=80, color_system="truecolor", force_terminal=True)
    for sample in page("docs", 1, IN_TERMINAL).samples:
        SamplePrinter(console).print_sample(sample)
    drawn = console.export_svg(title="streamdata show configs/demo.yaml --var data=demo_data --source docs -n 1")
    # Without the fonts of another host; each reader has one for terminals.
    drawn = re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL)
    (GUIDES / "show_terminal.svg").write_text("\n".join(filter(str.strip, drawn.splitlines())) + "\n", encoding="utf-8")
    html = Path(data) / "show.html"
    write_page(page("tiles", 3, ON_PAGE), html)
    with chromium() as browser:
        size = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.open(html.resolve().as_uri())
        picture = Image.open(io.BytesIO(browser.driver.get_screenshot_as_png())).convert("RGB")
    picture.quantize(256, dither=Image.Dither.NONE).save(GUIDES / "show_browser.png", optimize=True)


if __name__ == "__main__":
    main()

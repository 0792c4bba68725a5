"""The file: whatever samples hold, it is text in it."""

import base64
import hashlib
import re
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image

from streamdata.tools.show.fields import FieldRenderer
from streamdata.tools.show.model import ON_PAGE, Page, ShownSample
from streamdata.tools.show.page import write_page

HOSTILE = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>\x1b[2J\u202e{{ 7 * 7 }}</style>"

OURS = {"html", "head", "meta", "title", "style", "body", "a", "header", "h1", "h2", "h3", "p", "main", "div", "nav"}
OURS |= {"ul", "ol", "li", "span", "section", "article", "dl", "dt", "dd", "footer", "figure", "figcaption", "img"}


class Tags(HTMLParser):
    """What a browser would find: tags with their attributes, and the text between them."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


def sample(**fields):
    """A view whose names and places are hostile, too."""
    shown = FieldRenderer(ON_PAGE).of(fields)
    record = ShownSample(number=0, where=HOSTILE, fields=shown)
    place = {"where": HOSTILE, "url": HOSTILE, "key": HOSTILE}
    return ShownSample(number=0, source=HOSTILE, fields=shown, num_records=2, records=(record,) * 2, **place)


def html_of(folder, *samples):
    """The text of a file with these samples."""
    write_page(Page(title=HOSTILE, about=HOSTILE, samples=samples), folder / "page.html")
    return (folder / "page.html").read_text()


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """The page of a sample that is hostile wherever it can be."""
    view = sample(
        **{HOSTILE: HOSTILE},
        raw=HOSTILE.encode(),
        drawing=f"<svg onload=alert(1)>{HOSTILE}</svg>".encode(),
        chat=[{"role": HOSTILE, "content": HOSTILE, "name": HOSTILE}],
        values={"a": HOSTILE, HOSTILE: 1},
        array=np.array([HOSTILE]),
        image=b"\x89PNG\r\n\x1a\n" + HOSTILE.encode(),
    )
    return html_of(tmp_path_factory.mktemp("hostile"), view)


def test_nothing_of_a_stranger_is_markup(hostile):
    """No script, no handler, no style, nothing that is loaded; it stands there as text."""
    found = Tags(hostile)
    assert {tag for tag, _ in found.tags} <= OURS
    names = {name for _, attributes in found.tags for name in attributes}
    assert not {name for name in names if name.startswith("on") or name in ("style", "srcset", "srcdoc")}
    assert all(
        value.startswith(("#", "data:"))
        for _, each in found.tags
        for key, value in each.items()
        if key in ("href", "src")
    )
    assert found.text.count("<script>alert(1)</script>") > 10
    assert "\\x1b[2J\\u202e{{ 7 * 7 }}" in found.text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", hostile)


def test_the_policy_allows_no_script_and_one_style(hostile):
    """By the hash of what stands in the file."""
    (policy,) = [each["content"] for tag, each in Tags(hostile).tags if each.get("http-equiv")]
    (style,) = re.findall("<style>(.*?)</style>", hostile, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy == f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'"


def test_images_are_encoded_anew(tmp_path):
    """As files of our own, with a text for who does not see them; what they had beside pixels is gone."""
    image = Image.new("RGB", (640, 480), "red")
    image.info["comment"] = b"secret"
    images = [each for tag, each in Tags(html_of(tmp_path, sample(photo=image))).tags if tag == "img"]
    assert images[0]["alt"] == "image of 640 × 480 pixels, RGB"
    assert (images[0]["width"], images[0]["height"]) == ("320", "240")
    data = base64.b64decode(images[0]["src"].partition(",")[2])
    assert data.startswith(b"\x89PNG")
    assert b"secret" not in data


def test_ids_are_there_once_and_headings_have_an_order(hostile):
    """As screen readers need it; a region that scrolls can be reached, tables have headers."""
    tags = Tags(hostile).tags
    ids = [each["id"] for _, each in tags if "id" in each]
    assert len(ids) == len(set(ids))
    levels = [int(tag[1]) for tag, _ in tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(later - before <= 1 for before, later in pairwise(levels))
    assert all(each["aria-labelledby"] in ids for _, each in tags if "aria-labelledby" in each)


def test_a_page_is_written_whole_or_not_at_all(tmp_path):
    """Beside it nothing is left."""
    page = Page(title="t", about="", samples=())
    write_page(page, tmp_path / "page.html")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    with pytest.raises(OSError, match="nowhere"):
        write_page(page, tmp_path / "nowhere" / "page.html")

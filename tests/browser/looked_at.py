"""What the browser is shown: mixtures of photographs and texts, and of what a stranger would write to do harm."""

import io
import tarfile
import threading
from contextlib import contextmanager

import numpy as np
import orjson
from PIL import Image

from streamdata.tools.show.server import PageServer

HOSTILE = [
    "<script>window.harmed = 1; alert(1)</script>",
    "\"'><img src=x onerror='window.harmed = 1'>",
    "<svg onload=window.harmed=1><script>window.harmed=1</script></svg>",
    "</textarea></title></style></option></select><script>window.harmed = 1</script>",
    "<iframe src=http://127.0.0.1:9/harm></iframe><link rel=stylesheet href=//127.0.0.1:9/harm>",
    "<meta http-equiv=refresh content='0;url=http://127.0.0.1:9/harm'><base href=http://127.0.0.1:9/>",
    "{{ 7 * 7 }}{% raw %}${7 * 7}{{ cycler.__init__.__globals__ }}",
    "' onmouseover=window.harmed=1 autofocus onfocus=window.harmed=1 x='",
    "<style>body { background: url(http://127.0.0.1:9/harm) }</style>",
    "javascript:window.harmed=1",
    "\x1b[2J\x00\x07\u202egnp.exe\u2066\u200f\ufeff\x9b31m\x7f",
]
"""What strangers write into captions, keys and names."""

SVG = b"<svg xmlns='http://www.w3.org/2000/svg' onload='window.harmed=1'><script>window.harmed=1</script></svg>"


def photographs(folder, count=400):
    """Captions and pictures of 320 x 240 in one tar."""
    generator = np.random.default_rng(3)
    small = generator.integers(0, 255, (count, 6, 8, 3), np.uint8)
    members = {}
    for number, pixels in enumerate(small):
        file = io.BytesIO()
        Image.fromarray(pixels).resize((320, 240)).save(file, "JPEG")
        members[f"{number:04}.jpg"] = file.getvalue()
        members[f"{number:04}.txt"] = f"picture {number}".encode()
    return tar_of(folder / "photographs.tar", members)


def hostile(folder):
    """The same texts as fields, field names, keys, members of tars, names of files, and what says it is an image."""
    names = [text.replace("/", "|").replace("\x00", "\x01").replace(".", "·")[:80] for text in HOSTILE]
    place = folder / "<script>window.harmed=1<|script>"
    place.mkdir(parents=True)
    rows = [{"caption": text, text: text, "messages": [{"role": text, "content": text}]} for text in HOSTILE]
    (place / f"{names[0]}.jsonl").write_bytes(b"\n".join(map(orjson.dumps, rows)))
    members = {}
    for name, text in zip(names, HOSTILE, strict=True):
        members |= {f"{name}.png": SVG, f"{name}.svg": SVG, f"{name}.html": SVG, f"{name}.txt": text.encode()}
        members |= {f"{name}.jpg": picture_with(text), f"{name}.json": orjson.dumps({text: text})}
    tar_of(place / f"{names[1]}.tar", members)
    return place


def picture_with(text):
    """A real one, whose comment says it."""
    file = io.BytesIO()
    Image.new("RGB", (20, 20), "red").save(file, "JPEG", comment=text.encode())
    return file.getvalue()


def tar_of(path, members):
    """Writes a tar."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


@contextmanager
def served(browsed):
    """The url of its pages."""
    server = PageServer(browsed)
    thread = threading.Thread(target=server.serve_forever, args=(0.1,))
    thread.start()
    try:
        yield server.url
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

"""Drawings of the concepts, as SVG that stands in the page: text and lines take the page's colour, light or dark.

Each function computes what it shows by the rules that it explains, so that the drawing is a true example.
"""

import math
import re
from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path

_COLOURS = ("#4c8bf5", "#e8833a", "#3aa76d")
"""Of lanes or sources; each has text of its own beside it, since some people do not see them apart."""
_BOX = 34
_NUM_DRAWS, _NUM_RECEIVED = 10, 5
_LINE = 'stroke="currentColor"'
_DASHED = f'{_LINE} stroke-width="2" stroke-dasharray="5 4"'
_TWO = "the same, two workers, batches of 64, "
_WORKS = {
    "tar, 20,000 records of 4 members (30 KB), no workers, in order": "Tars, in order",
    "tar, 20,000 records of 4 members (30 KB), no workers, shuffled": "Tars, shuffled",
    "the same with `mapped: true`, in order": "Tars, in order, mapped",
    "the same with `mapped: true`, shuffled": "Tars, shuffled, mapped",
    f"{_TWO}mixed_collate beside identity collate, in order": "Tars, in order, two workers",
    f"{_TWO}mixed_collate beside identity collate, shuffled": "Tars, shuffled, two workers",
    "JSONL, 400,000 rows of 985 bytes and 7 fields, no workers, in order": "JSON Lines, in order",
    "JSONL, 400,000 rows of 985 bytes and 7 fields, no workers, shuffled": "JSON Lines, shuffled",
    f"{_TWO}shuffled, mixed_collate": "JSON Lines, shuffled, two workers",
    "the same through MergedDataset, checked, no workers, first epoch": "Windows of tokens, first epoch",
    "the same through MergedDataset, checked, no workers, later epochs": "Windows of tokens, later epochs",
    f"{_TWO}TensorCollate": "Windows of tokens, two workers",
    "an epoch of the same, shuffled, no workers": "Tars in an object store, nothing cached",
    "the same in batches of 64, shuffled, no": "Tars in an object store, shuffled batches",
    "the same in batches of 64, shuffled, 2": "Tars in an object store, shuffled batches, two workers",
    "the same in batches of 64, in order, no": "Tars in an object store, in order",
    "the same in batches of 64, in order, 2": "Tars in an object store, in order, two workers",
    "the same, a second epoch": "Tars in an object store, cached on disk",
}
"""How rows of the table of figures begin, and what the bars call them."""
_PEER = re.compile(r"(webdataset|litdata|torchdata|MosaicML Streaming)[^;]*? ([\d.]+) \(([\d.]+) to ([\d.]+)\)")


def _svg(width: int, height: int, parts: Iterable[str], title: str) -> str:
    size = f'viewBox="-3 0 {width + 3} {height}" style="max-width:{width}px;width:100%"'
    return f"<svg {size} role='img' aria-label='{escape(title)}'><title>{escape(title)}</title>{''.join(parts)}</svg>"


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 14) -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" fill="currentColor">{escape(text)}</text>'


def _box(x: float, y: float, text: str, colour: str, *, filled: bool = True, width: float = _BOX) -> str:
    place = f'x="{x}" y="{y}" width="{width - 4}" height="{_BOX - 4}" rx="4"'
    look = f'fill="{colour}" fill-opacity="{0.3 if filled else 0}" stroke="{colour}" stroke-width="2"'
    return f"<rect {place} {look}/>" + _text(x + (width - 4) / 2, y + 20, text, anchor="middle")


def order() -> str:
    """Twelve blocks of an epoch, permuted, and dealt to three lanes in turn."""
    permutation = [7, 2, 10, 0, 5, 11, 3, 8, 1, 9, 4, 6]
    parts = [_text(0, 20, "order: the blocks of an epoch, permuted by the seed")]
    for number, block in enumerate(permutation):
        parts += [
            _box(number * _BOX, 30, str(block), _COLOURS[number % 3]),
            _text(number * _BOX + 15, 76, str(number), anchor="middle", size=11),
        ]
    for lane in range(3):
        y = 100 + lane * 42
        parts.append(_text(0, y + 20, f"lane {lane}"))
        numbers = range(lane, 12, 3)
        parts += [_box(70 + at * _BOX, y, str(permutation[n]), _COLOURS[lane]) for at, n in enumerate(numbers)]
        parts.append(
            _text(70 + 4 * _BOX + 8, y + 20, f"numbers {', '.join(map(str, numbers))}, then on into the next epoch")
        )
    title = "Twelve permuted blocks; each of three lanes gets every third, from the first, the second, the third on"
    return _svg(520, 230, parts, title)


def clock() -> str:
    """The first draws of shares 0.5, 0.3, 0.2, by the clocks of README's rule."""
    shares = {"a": 0.5, "b": 0.3, "c": 0.2}
    clocks = {name: (0.6180339887498949 * number % 1) / share for number, (name, share) in enumerate(shares.items())}
    parts = []
    for row, (name, share) in enumerate(shares.items()):
        y = 12 + row * 42
        parts += [
            _text(0, y + 20, f"{name}: share {share}"),
            f'<path d="M110 {y + 15} H600" stroke="currentColor" stroke-opacity="0.4"/>',
        ]
    drawn: list[str] = []
    while len(drawn) < _NUM_DRAWS:
        name = min(clocks, key=lambda one: clocks[one])
        row = list(shares).index(name)
        parts.append(_box(110 + clocks[name] * 24, 12 + row * 42, str(len(drawn) + 1), _COLOURS[row], width=26))
        clocks[name] += 1 / shares[name]
        drawn.append(name)
    parts.append(_text(110, 152, "clock →"))
    parts.append(_text(0, 180, f"draws in the order of the clocks: {' '.join(drawn)} …"))
    title = f"Three sources with a clock each; the lowest clock is drawn next, which gives {' '.join(drawn)}"
    return _svg(620, 190, parts, title)


def lanes() -> str:
    """Two ranks with two workers each: four lanes, and whose batches come when."""
    parts = []
    for rank in range(2):
        y = 10 + rank * 100
        parts.append(_text(0, y + 40, f"rank {rank}"))
        for worker in range(2):
            lane = 2 * rank + worker
            at = y + worker * 42
            parts.append(_box(60, at, f"worker {worker}: lane {lane}", _COLOURS[worker], width=150))
            parts += [
                _box(300 + (2 * step + worker) * 44, y + 21, f"{step * 2 + worker + 1}", _COLOURS[worker])
                for step in range(3)
            ]
        parts.append(f'<path d="M215 {y + 36} H290 m-8 -5 l8 5 l-8 5" stroke="currentColor" fill="none"/>')
    parts.append(_text(300, 215, "batches of a rank come from its workers in turn"))
    title = "Two ranks with two workers each are four lanes; a rank's batches come from its workers in turn"
    return _svg(625, 225, parts, title)


def state() -> str:
    """What was received before a crash counts; what was ready behind it is made again."""
    parts = [_text(0, 20, "batches of a rank with two workers")]
    for step in range(8):
        colour = _COLOURS[step % 2]
        parts.append(_box(step * 60, 30, f"{step + 1}", colour, filled=step < _NUM_RECEIVED, width=56))
    parts += [
        f'<path d="M298 22 V84" {_DASHED}/>',
        _text(298, 100, "crash", anchor="middle"),
        _text(0, 100, "received: in the state"),
        _text(330, 100, "ready, not received: made again"),
    ]
    title = "Five batches were received before the crash and are in the state; three that were ready are made again"
    return _svg(560, 112, parts, title)


def elastic() -> str:
    """Twelve windows, two lanes that stop, three that go on."""
    parts = [_text(0, 18, "two lanes stop here")]
    begun = {0: 3, 1: 2}
    for lane in range(2):
        y = 28 + lane * 42
        parts.append(_text(0, y + 20, f"lane {lane}"))
        for at, number in enumerate(range(lane, 12, 2)):
            parts.append(_box(70 + at * 48, y, str(number), _COLOURS[lane], filled=at < begun[lane], width=44))
    parts += [
        f'<path d="M{70 + 3 * 48 - 4} 22 V112" {_DASHED}/>',
        _text(70 + 3 * 48 + 4, 128, "offset: from here on all lanes go by turns"),
        _text(0, 160, "three lanes go on"),
    ]
    left = [5]
    for lane in range(3):
        y = 170 + lane * 42
        numbers = left[lane : lane + 1] + list(range(6 + lane, 12, 3))
        parts.append(_text(0, y + 20, f"lane {lane}"))
        parts += [
            _box(70 + at * 48, y, str(number), _COLOURS[lane], filled=False, width=44)
            for at, number in enumerate(numbers)
        ]
        parts += [_text(70 + 3 * 48 + 10, y + 20, "first what was left over before the offset")] * (lane == 0)
    title = "What two lanes left over before the offset is shared out first; then three lanes go on from there by turns"
    return _svg(560, 300, parts, title)


def peer_ratios() -> Iterator[tuple[str, str, float, float, float]]:
    """Each comparison of `figures.md` with a peer: work, peer, and how many times as fast: best, least, most.

    Raises:
        ValueError: A row with a peer has no short title.
    """
    text = (Path(__file__).parent / "figures.md").read_text(encoding="utf-8")
    for row, compared in re.findall(r"^\| (.+?) \| .* \| (.+) \|$", text, re.MULTILINE):
        for peer, *ratios in _PEER.findall(compared):
            work = next((title for begin, title in _WORKS.items() if row.startswith(begin)), None)
            if work is None:
                raise ValueError(f"docs/drawings.py: no title for the row {row!r}\n  Add one to _WORKS.")
            best, least, most = map(float, ratios)
            yield work, peer, best, least, most


def peers() -> str:
    """Bars of how many times as fast as each peer, on a logarithmic scale."""

    def at(ratio: float) -> float:
        return 230 + 60 * math.log2(ratio)

    rows = sorted(peer_ratios(), key=lambda row: [*_WORKS.values()].index(row[0]))
    parts: list[str] = []
    y, last = 24, ""
    for work, peer, best, least, most in rows:
        if work != last:
            parts.append(_text(0, y + 22, work, size=15))
            y, last = y + 30, work
        start, end = sorted((at(1), at(best)))
        colour = _COLOURS[2 if best >= 1 else 1]
        name = {"litdata": "LitData", "MosaicML Streaming": "MosaicML"}.get(peer, peer)
        parts += [
            _text(0, y + 14, name),
            f'<rect x="{start:.1f}" y="{y}" width="{end - start:.1f}" height="18" fill="{colour}"/>',
            f'<path d="M{at(least):.1f} {y + 9} H{at(most):.1f}" {_LINE} stroke-width="2"/>',
            f'<path d="M{at(1)} {y - 3} v24" {_LINE}/>',
            _text(82, y + 14, f"{best:.{2 if best < 1 else 1}f} ×"),
        ]
        y += 24
    parts += [_text(at(n), 14, f"{n:g} ×", anchor="middle") for n in (0.5, 1, 2, 4, 8)]
    ahead = sum(best >= 1 for _, _, best, _, _ in rows)
    title = f"Throughput as a multiple of a peer's: streamdata is ahead in {ahead} works, a peer in {len(rows) - ahead}"
    return _svg(480, y + 8, parts, title)


DRAWINGS = {"clock": clock, "elastic": elastic, "lanes": lanes, "order": order, "peers": peers, "state": state}

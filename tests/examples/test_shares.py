from pathlib import Path

import pytest

from examples import shares

PICTURE = Path(__file__).parents[2] / "docs" / "shares.svg"


def test_the_picture_is_that_of_the_present_stream(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever changes the order or the clocks changes it: then it is drawn again."""
    path = tmp_path / "shares.svg"
    shares.main(str(path))
    assert "31,200 samples by 8, 12, 12, 4 ranks, no record twice" in capsys.readouterr().out
    assert path.read_text() == PICTURE.read_text(), "stale: run python examples/shares.py docs/shares.svg"


def test_the_job_keeps_to_its_shares() -> None:
    """Of 120 samples of the job each source gives its share, 5 more or less at most, through all changes."""
    run = [stretch._replace(num_samples=stretch.num_samples // 4) for stretch in shares.RUN]
    ends = [sum(stretch.num_samples for stretch in run[: number + 1]) for number in range(len(run))]
    for time, counts in shares.run_through(run, bin_size=120):
        stretch = next(one for one, end in zip(run, ends, strict=True) if time <= end)
        wanted = shares.shares_at(stretch.percents, time - 60)
        assert all(abs(counts[name] - 120 * share) <= 5 for name, share in wanted.items()), (time, counts, wanted)

"""How far a run is."""

import time
from collections import Counter


class RunProgress:
    """What was done, and how fast.

    Args:
        total_bytes: Of input, in all.

    Attributes:
        counts: Records, bytes, tokens … since this process began.
        skipped_bytes: Input that an earlier run has done.
    """

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.counts: Counter[str] = Counter()
        self.skipped_bytes = 0
        self._began = time.monotonic()

    def line(self) -> str:
        """Records, tokens a second, megabytes a second and the time left, in one line."""
        took = max(time.monotonic() - self._began, 1e-9)
        done, left = self.counts["bytes"], max(self.total_bytes - self.skipped_bytes - self.counts["bytes"], 0)
        part = (self.skipped_bytes + done) / self.total_bytes if self.total_bytes else 1
        remaining = f"{_duration(left * took / done)} left" if done else "starting"
        percent, tokens = f"{min(part, 1):4.0%}", f"{self.counts['tokens'] / took:,.0f} tokens/s"
        bad = f"  {self.counts['bad']:,} bad" if self.counts["bad"] else ""
        return (
            f"{percent}  {self.counts['records']:,} records{bad}  {tokens}  {done / took / 1e6:.3g} MB/s  {remaining}"
        )


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"

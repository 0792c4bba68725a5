"""A `customized_yield_fn`: several samples of the merged stream become one."""

from collections.abc import Iterator
from typing import Any

Sample = dict[str, Any]


class JoinTexts:
    """Joins the texts of consecutive samples until they are long enough; what is not a text passes through.

    Between two bursts nothing is held back, so that a resume is exact without a state.

    Args:
        min_chars: how long a joined text is at least.
    """

    def __init__(self, min_chars: int) -> None:
        self.min_chars = min_chars

    def __call__(self, samples: Iterator[Sample]) -> Iterator[Sample]:
        """Yield the joined samples."""
        for sample in samples:
            if "text" not in sample:
                yield sample
                continue
            texts, others = [sample["text"]], []
            while sum(map(len, texts)) < self.min_chars:
                following = next(samples, None)
                if following is None:
                    break
                if "text" in following:
                    texts.append(following["text"])
                else:
                    others.append(following)
            yield {"text": "\n\n".join(texts), "num_texts": len(texts)}
            yield from others

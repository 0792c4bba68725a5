"""A byte-level tokenizer of some hundred tokens, made on the spot."""

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

END = "<|end|>"
START = "<|start|>"


def save_tiny_tokenizer(
    path: Path, *, eos: bool = True, text: str = "the cat sat on the mat", starts: bool = False
) -> str:
    """Trains byte-level BPE on a line of text and saves it as transformers loads it.

    Args:
        path: a directory.
        eos: whether it has an end-of-sequence token.
        text: what it is trained on.
        starts: whether its own format puts a start and an end around a text.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=[END, START], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([text] * 10, trainer)
    if starts:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{START} $A {END}", special_tokens=[(START, 1), (END, 0)]
        )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **({"eos_token": END} if eos else {}))
    fast.save_pretrained(path)
    return str(path)

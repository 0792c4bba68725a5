"""How records become tokens, as a config says it; `load_config` reads and checks one."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from streamdata.stores.dtypes import SOURCES

TrainType = Literal["seq", "sft", "dpo", "grpo"]
Format = Literal["bin", "h5", "megatron"]

STREAMED: tuple[TrainType, ...] = ("seq", "sft")
"""Train types that are read as windows over one sequence; the records of the others stay records."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)


class Section(_Strict):
    """One field of a record, and what becomes of it."""

    field: Annotated[str, Field(min_length=1)]
    """The name of the field; dots lead into nested objects."""
    action: Literal["train", "mask", "$role", "value"]
    """train or mask the tokens of a text; $role: a chat, trained by the roles of its messages; value: numbers."""
    template: str | None = None
    """For a text: `{value}` stands for the field, and what is before it is a header, which is not trained. For a chat:
    a Jinja template instead of the tokenizer's own."""
    add_special_tokens: bool = False
    """Whether the tokenizer adds those of its own format, such as a start, to a text."""
    optional: bool = False
    """Whether the section is left out where the field is missing, null or empty; else that is an error."""
    roles: dict[str, Literal["train", "mask"]] = {"assistant": "train"}
    """What is trained of a chat; roles that are not named are masked, and a message's own `train: false` decides."""
    tools: str | None = None
    """The field of a record with the tools of its chat, where there are any."""
    system: str | None = None
    """The field of a record with a system message that goes before its chat, where there is one."""
    prompt: str | None = None
    """The field of a record with the messages that its chat answers, where there are any; they go before it unless it
    begins with them. A text there has to be what the first user of the chat says."""
    add_generation_prompt: bool = False
    """Whether the chat is a prompt that ends where the assistant begins to speak."""
    template_kwargs: dict[str, Any] = {}
    """Variables for the chat template."""
    append_stop: bool = True
    """Whether the next role's token ends the answers of a chat whose template has none for that, such as GLM-4.5's."""


WHOLE_CHAT: Final = Section(field="messages", action="$role")
"""How a chat is encoded whose record is of a known format."""
RECORD_FORMATS: Final[Mapping[TrainType, tuple[str, ...]]] = {
    "seq": ("language-modeling",),
    "sft": ("language-modeling", "prompt-completion", "sharegpt", "alpaca"),
    "dpo": ("preference",),
    "grpo": (),
}
"""What records may be without sections, by train type; see `streamdata.text.formats`."""


class PrepareConfig(_Strict):
    """How JSONL records become a store that `DatasetFactory` reads."""

    train_type: TrainType
    """What the store is for: seq (pretraining), sft, dpo (pairs) or grpo (rollouts)."""
    records: Literal["auto", "language-modeling", "prompt-completion", "preference", "sharegpt", "alpaca"] = "auto"
    """What records are where there are no sections; `auto` for what the fields of the first say."""
    sections: list[Section] | None = None
    """The sections of the one sequence of seq and sft, in their order."""
    sources: dict[str, list[Section]] | None = None
    """The sections of each source: chosen and rejected for dpo; prompts, responses and rewards for grpo."""
    max_seq_len: Annotated[int, Field(ge=1)] | None = None
    """How many tokens a sequence may have, its end-of-document token included."""
    too_long: Literal["drop", "truncate_left", "truncate_right", "error"] = "drop"
    """What becomes of a longer one; truncate_left keeps its end. What then trains nothing is dropped."""
    min_chars: Annotated[int, Field(ge=0)] = 0
    """Records whose texts have fewer characters together are dropped."""
    max_chars: Annotated[int, Field(ge=1)] | None = None
    """Records whose texts have more are dropped."""
    max_items: Annotated[int, Field(ge=1)] | None = None
    """Records with a list of more texts, messages or numbers are dropped."""
    packing: Literal["none", "simple", "bfd", "bfd_split"] = "none"
    """How sequences share rows of max_packed_len tokens: cut anywhere, whole where they fit, or cut first and fit. seq
    has no mask that could leave out padding: its rows follow one another without any, and windows run across them."""
    max_packed_len: Annotated[int, Field(ge=2)] | None = None
    """Tokens per row."""
    position_ids: Literal["none", "doc_reset", "continuous"] | None = None
    """From 0 in each document, on through the row, or not stored; by default doc_reset for sft, none for seq."""
    end_of_document: bool = False
    """Whether the tokenizer's end-of-sequence token follows each sequence of seq and sft."""
    domain_key: str | None = None
    """The field of a record that names the directory of its own below the output."""
    format: Format = "bin"
    """How the store lies on disk; `auto` is bin."""
    max_tokens_per_shard: Annotated[int, Field(ge=1)] = 1 << 28
    """A shard with this many tokens is full."""
    task_bytes: Annotated[int, Field(ge=1)] = 1 << 26
    """Bytes of input per task, the unit of work and of resuming; packing does not cross tasks."""
    backend: Literal["tokenizers", "gigatoken"] = "tokenizers"
    """What encodes text; gigatoken is used if it agrees with the tokenizer on a sample of the input."""
    max_bad: Annotated[int, Field(ge=0)] | Annotated[str, Field(pattern=r"^\d+(\.\d+)?%$")] = 0
    """How many records may be bad, or how many per cent such as "0.1%"; they go to `quarantine.jsonl`."""

    @field_validator("format", mode="before")
    @classmethod
    def _usual_format(cls, given: Any) -> Any:
        # Everywhere else `format: auto` asks what rows are, which is asked here wherever there are no sections.
        return "bin" if given == "auto" else given

    def has_known_records(self) -> bool:
        """Whether records are of a known format, instead of what sections say."""
        return self.sections is None and self.sources is None and bool(RECORD_FORMATS[self.train_type])

    def sources_by_name(self) -> dict[str, list[Section]]:
        """The sections of each source, as the train type names it."""
        if self.has_known_records():
            names = ("chosen", "rejected") if self.train_type == "dpo" else ("sequence",)
            return {name: [WHOLE_CHAT] for name in names}
        return self.sources if self.sources is not None else {"sequence": self.sections or []}

    def all_sections(self) -> list[Section]:
        """The sections of all sources."""
        return [section for sections in self.sources_by_name().values() for section in sections]

    def has_rows(self) -> bool:
        """Whether records are rows of one length: filled up with padding, which a mask has to leave out."""
        return self.packing != "none" and SOURCES[self.train_type]["sequence"].mask is not None

    def has_chats(self) -> bool:
        """Whether a chat template is needed."""
        return any(section.action == "$role" for section in self.all_sections())

    def stored_positions(self) -> Literal["none", "doc_reset", "continuous"]:
        """Which position ids are stored."""
        return self.position_ids or ("doc_reset" if self.train_type == "sft" else "none")

    def most_bad(self, records: float) -> float:
        """How many of a number of records may be bad."""
        return float(self.max_bad[:-1]) / 100 * records if isinstance(self.max_bad, str) else self.max_bad

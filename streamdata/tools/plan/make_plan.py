"""The plan of a run: `dataset, its length, topology → RunPlan → text`. Payloads are read of a sample alone."""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from rich.text import Text

from streamdata.errors import SourceError, counted, shortened, shown
from streamdata.mixing import MergedDataset
from streamdata.mixing.lengths import MANY_EPOCHS, count_text, lengths_by
from streamdata.mixing.tree import Node, mean_node_shares, num_in, tree_of
from streamdata.run import Lane
from streamdata.shards.ahead.read_ahead import ahead_settings
from streamdata.sources.files.parquet import RowGroupSource
from streamdata.sources.files.shard_source import BlockSource, SequentialSource
from streamdata.sources.foreign.own_stream import OwnStreamSource
from streamdata.stores.datasets.base_dataset import BaseDataset
from streamdata.tools.plan.course import Averages, Draw, RunCourse, first_draws
from streamdata.tools.plan.sampled import Sampled, sample_tree
from streamdata.tools.plan.stragglers import StragglerLoss, straggler_loss
from streamdata.tools.view.tree import bytes_text, paragraph, percent_text, table

FINE: Final = "fine"
MIND: Final = "mind"
HURTS: Final = "hurts"
"""How much there is to do about a source."""

NOT_COUNTED: Final = (
    "not counted: its records show only when they are read, so epochs and repeats are not known; set its `length` to "
    "have them"
)
_ENDED: Final = 0.99
"""Sources that are read as far as this part of what is read of any have ended with it."""
_FUNCTIONS: Final = ("single_process_fn", "process_fn")
_MAX_LISTED: Final = 4
_TAKEN_BYTES: Final = 8 << 20
"""Bytes that a reader of local shards reads at once, and holds, at most."""

Progressed = Callable[[str, int, int], None]
"""Is told what is being looked at, how many of them are done, and of how many."""


@dataclass(kw_only=True)
class Needs:
    """Memory that one worker process needs."""

    held_bytes: int
    """Bytes that its sources hold at most, the process itself and functions left out."""
    process_bytes: int
    """Memory of this process, with the recipe built: a worker that is forked shares most of it."""
    unknown: list[str]
    """Sources of which it is not known what they hold, by path."""


class Amount(NamedTuple):
    """The length of a run, and its ranks and workers."""

    samples: float | None = None
    tokens: float | None = None
    """Where the samples are not given."""
    dp_size: int = 1
    num_workers: int = 0
    batch_size: int = 1
    """Samples in a batch of one rank."""

    @property
    def lane(self) -> Lane:
        """The first lane."""
        return Lane(dp_size=self.dp_size, dp_rank=0, num_workers=max(1, self.num_workers), worker=0)


@dataclass(kw_only=True)
class SourcePlan:
    """A source in the plan of a run."""

    name: str
    """Its path of names."""
    records: int | None
    """None where nobody has counted them."""
    records_are_estimated: bool
    """Whether `records` is the share of a part by hash; the parts' own numbers show when they are read."""
    tokens: float | None
    tokens_are_estimated: bool
    tokens_per_record: float | None
    share: float
    """The share of the whole stream that the recipe wants, on average over the run."""
    samples: float
    """Samples that the run takes of it."""
    samples_are_estimated: bool
    """Whether rates, functions or costs tell them, and not the draws of the run."""
    records_read: float
    epochs: float | None
    epochs_are_estimated: bool
    first_repeat: int | None
    """The sample of the job, counted from 1, that is the first one of a second epoch."""
    first_repeat_is: str | None
    """`exact`; `within`, where lanes come to the second epoch from then on; `estimated`."""
    bytes: float | None
    """Bytes that the run reads of it."""
    advice: str
    level: str
    """One of fine, mind and hurts."""


@dataclass(kw_only=True)
class RunPlan:
    """The plan of a run."""

    samples: float
    """Samples that the run delivers."""
    tokens: float | None
    """Tokens in these samples, as far as that is known."""
    ends_after: float | None
    """The stream's own end, where that comes first."""
    end_is_estimated: bool
    ended: list[str]
    """Sources that are at their end there, by path."""
    dp: int
    workers: int
    batch: int
    lanes: int
    sources: list[SourcePlan]
    draws: list[Draw]
    """The first of rank 0, worker 0."""
    per_worker: Needs
    notes: list[str]
    balance: StragglerLoss | None
    """None where it was not asked for."""


class Planner:
    """Says what a run will do.

    Args:
        dataset: The mixture.
        amount: How long the run is, and on how many ranks and workers.
        num_sampled: Records of each source that are read; 0 reads nothing.
        progressed: Told how far it is.

    Raises:
        SourceError: A source has no records; tokens are asked for, and nobody knows how many a sample has; or balance
            is, and nothing balances.
    """

    def __init__(
        self, dataset: MergedDataset, amount: Amount, num_sampled: int, progressed: Progressed = lambda *_: None
    ) -> None:
        self._dataset, self._top, self._amount = dataset, tree_of(dataset), amount
        self._leaves, self._lane = self._top.leaves(), amount.lane
        self._averages = Averages()
        self._sampled = sample_tree(self._top, num_sampled, self._averages, progressed)
        samples, tokens = amount.samples or math.inf, amount.tokens or math.inf
        known = self._averages.tokens
        unknown = [node.path for node in self._leaves if node.path not in known]
        if amount.samples is None and (unknown or not any(known.values())):
            got = f"records of {listed(unknown)} that nobody has looked at" if unknown else "none in any source"
            raise SourceError(
                f"the top mixture: expected samples with tokens, to plan a run by tokens, got {got}\n"
                "  Give --read, or the run's length as --samples."
            )
        self._course = course = RunCourse(self._top, self._averages, samples, tokens)
        course.draw(self._lane, amount.batch_size)
        if not course.has_ended and not course.is_enough:
            course.go_on()
        if math.isinf(samples) and not course.has_ended and course.tokens < tokens * (1 - 1e-6):
            raise SourceError(
                f"the top mixture: expected {tokens:,.0f} tokens, to plan a run by tokens, got {course.tokens:,.0f} in "
                f"{course.delivered:,.0f} samples, and none after them\n  Give the run's length as --samples."
            )
        self._samples = float(math.ceil(course.delivered)) if amount.samples is None else amount.samples
        self._draws = self._samples * self._averages.pulled_by(self._top)
        mixtures = [node.dataset for node in self._top.walk() if node.is_mixture]
        self._has_costs = any(each.cost is not None for each in mixtures)
        self._uncounted = [path for path, size in course.epochs.items() if math.isinf(size)]
        self._varying = {*self._uncounted, *(node.path for node in self._leaves if _has(node, *_FUNCTIONS, "max_bad"))}
        """Sources of which it is estimated how many samples an epoch has."""
        joins = any(each.customized_yield_fn is not None for each in mixtures)
        is_rough = self._has_costs or joins or dataset.skip is not None or course.lanes < self._lane.count
        self._is_rough = is_rough or (not self._top.is_endless and bool(self._varying))
        self._is_estimated = self._is_rough or course.delivered > course.num_drawn
        too_few = course.tokens < tokens * (1 - 1e-6) if amount.samples is None else course.delivered < samples
        self._is_short = course.has_ended and too_few
        parts = {node.path: course.samples[node.path] / course.totals[node.path] for node in self._leaves}
        self._ended = [path for path, part in parts.items() if self._is_short and part >= _ENDED * max(parts.values())]

    def plan(self, num_draws: int, *, balances: bool = False) -> RunPlan:
        """The plan, with so many first draws, and with what balance gives."""
        course, top, amount = self._course, self._top, self._amount
        taken = {
            node.path: min(course.samples[node.path], course.totals[node.path])
            * (1.0 if getattr(node.dataset, "length", None) else self._averages.pulled_by(node))
            for node in self._leaves
        }
        rows = lengths_by(top, mean_node_shares(top, self._draws), taken)
        function, lengths = top.dataset.customized_yield_fn, self._averages.lengths
        has_tokens = len(self._averages.tokens) == len(self._leaves)
        return RunPlan(
            samples=self._samples,
            tokens=course.tokens or None if has_tokens else None,  # none in any source: not known, rather than 0
            ends_after=float(round(course.delivered)) if self._is_short else None,
            end_is_estimated=self._is_short and self._is_estimated,
            ended=self._ended,
            dp=amount.dp_size,
            workers=amount.num_workers,
            batch=amount.batch_size,
            lanes=self._lane.count,
            sources=[self._source(node, length) for node, length in zip(self._leaves, rows, strict=True)],
            draws=first_draws(top, self._lane, num_draws, self._averages) if num_draws else [],
            per_worker=self._needs(),
            notes=[*self._notes_on_draws(), *self._notes_on_functions()],
            balance=straggler_loss(function, lengths, amount.dp_size, amount.batch_size) if balances else None,
        )

    def _source(self, node: Node, length: dict[str, Any]) -> SourcePlan:
        path, records, epochs = node.path, num_in(node, "records"), length["epochs"]
        found, known = self._sampled.get(path), num_in(node, "tokens")
        per_record = None if found is None else found.tokens
        total: float | None = known
        if known is not None:
            per_record = known / records if records else None
        elif records is not None and per_record is not None:
            total = records * per_record
        # The first repeat: in each lane of the job, or of those that stand for them.
        repeats = self._course.repeats[path] if path not in self._uncounted else {}
        first, how = int(min(repeats.values())) if repeats else None, None
        if first is not None:
            is_told = not self._is_rough and path not in self._varying and -1 not in repeats
            how = "estimated" if not is_told else "exact" if self._lane.count == 1 else "within"
        is_estimated = self._is_estimated or path in self._varying or node.part is not None
        size = None if epochs is None else _sizes(node, found)[0]
        advice, level = self._advice(node, length)
        return SourcePlan(
            name=path,
            records=records,
            records_are_estimated=node.part is not None,
            tokens=total,
            tokens_are_estimated=known is None and total is not None,
            tokens_per_record=per_record,
            share=length["share"],
            samples=self._course.samples[path],
            samples_are_estimated=self._is_estimated,
            records_read=self._course.samples[path] * self._averages.pulled_by(node),
            epochs=epochs,
            epochs_are_estimated=is_estimated,
            first_repeat=first,
            first_repeat_is=how,
            bytes=None if size is None else size * epochs,
            advice=advice,
            level=level,
        )

    def _advice(self, node: Node, length: dict[str, Any]) -> tuple[str, str]:
        parts, level, epochs = [length["advice"]] if length["advice"] else [], FINE, length["epochs"]
        if epochs is None:
            parts, level = [*parts, NOT_COUNTED], MIND
        elif epochs > MANY_EPOCHS:
            level = HURTS if epochs > MANY_EPOCHS**2 else MIND
        if node.path in self._ended:
            level = HURTS
        lanes, source = self._lane.count, node.source
        if source is None or isinstance(source, OwnStreamSource) or source.num_blocks >= lanes:
            return "; ".join(parts), level
        remedy = "give it a smaller block_size, or more records" if isinstance(source, BlockSource) else "add records"
        if isinstance(source, SequentialSource):
            remedy = "cut it into more shards, or decompress them"
        has = f"{counted(source.num_blocks, 'block')} for {lanes:,} lanes"
        what = f"{lanes - source.num_blocks:,} lanes get none of it, and go on without it"
        if node.is_endless:
            what = "lanes read other epochs of it at the same time, so records repeat before all were read"
        level = HURTS if level == HURTS or not node.is_endless else MIND
        return "; ".join([*parts, f"{has}: {what}; {remedy}"]), level

    def _needs(self) -> Needs:
        """Estimate what a worker needs that reads the tree."""
        ahead = ahead_settings(self._dataset.read_ahead_bytes, self._dataset.connections).read_ahead_bytes
        held = {node.path: _sizes(node, self._sampled.get(node.path))[1] for node in self._leaves}
        sources = [node.source for node in self._leaves]
        shards = [source.shards for source in sources if isinstance(source, BlockSource | SequentialSource)]
        is_remote = any(each.has_remote for each in shards)
        with open("/proc/self/statm", encoding="ascii") as file:
            resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return Needs(
            held_bytes=math.ceil(sum(filter(None, held.values()))) + is_remote * ahead,
            process_bytes=resident,
            unknown=[path for path, size in held.items() if size is None],
        )

    def _notes_on_draws(self) -> Iterator[str]:
        course, top = self._course, self._top
        if course.lanes < self._lane.count:
            yield f"drawn on {course.lanes} of {self._lane.count:,} lanes: what is read and repeats is estimated"
        if course.delivered > course.num_drawn:
            yield f"the first {course.num_drawn:,} samples were drawn; beyond them the run goes on by rates, estimated"
        if self._uncounted and not top.is_endless:
            yield f"as if there were no end to {listed(self._uncounted)}, whose records nobody has counted"
        if self._dataset.skip is not None:
            yield "records to skip are counted as if they were read"

    def _notes_on_functions(self) -> Iterator[str]:
        functions = [node.path for node in self._leaves if _has(node, *_FUNCTIONS)]
        if functions and self._sampled:
            what = f"samples, epochs, repeats and bytes of {listed(functions)}"
            yield f"estimated of a sample, since functions decide how many records become one: {what}"
        elif functions:
            yield f"as if each record became one sample: {listed(functions)} have functions, and nothing was sampled"
        if any(_has(node, "process_fn") for node in self._leaves):
            yield "tokens are those of records before packing"
        if self._has_costs:
            yield "shares count costs" + ("" if self._sampled else ", taken to be alike, since nothing was sampled")
        for node in self._top.walk():
            if node.is_mixture and node.dataset.customized_yield_fn is not None:
                number = f"{self._averages.pulled_by(node):.3g}" if self._sampled else "as many"
                who = f"of {shown(node.path)}" if node.path else "of the top"
                yield f"a sample takes {number} draws {who}, by its yield function"


def _has(node: Node, *names: str) -> bool:
    return any(getattr(node.dataset, name, None) for name in names)


def listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return ", ".join(names[:_MAX_LISTED]) + more


def _sizes(node: Node, found: Sampled | None) -> tuple[float | None, float | None]:
    """Bytes that an epoch of a source reads, and that a worker holds of it at most; None where that is not known."""
    held: float | None = 0
    match node.source:
        case RowGroupSource(shards=shards):
            held = min(int(shards.sizes.sum()), shards.max_open_bytes)
            size = sum(stamp.size for stamp in shards.stamps)
        case BlockSource(shards=shards):
            size = int(shards.sizes.sum())
            held = 0 if shards.has_remote else min(_TAKEN_BYTES, size)
        case SequentialSource(shards=shards, records_per_group=at_once):
            held = None if found is None else found.record_bytes * max(1, at_once)
            size = sum(num_bytes for _, num_bytes in shards.identity())
        case _ if isinstance(node.dataset, BaseDataset):
            size = sum(array.count * array.dtype.itemsize for array in node.dataset.store.arrays())
        case _:
            return None, None
    return size if node.part is None else size * node.part.share, held


_STYLES: Final = {FINE: "", MIND: "yellow", HURTS: "red"}
_MAX_ADVICE: Final = 10
"""Sources whose advice is printed; the worst come first."""
_MAX_NAME: Final = 40


def plan_text(plan: RunPlan) -> Text:
    """The plan for a person to read; in colour, what there is to do about."""
    tokens = "" if not plan.tokens else f", {count_text(plan.tokens)} tokens"
    workers = f"with {counted(plan.workers, 'worker')}" if plan.workers else "without workers"
    who, lanes = f"{counted(plan.dp, 'rank')} {workers}", counted(plan.lanes, "lane")
    head = paragraph(f"{count_text(plan.samples)} samples{tokens}, on {who}: {lanes}, batches of {plan.batch:,}")
    if plan.ends_after is not None:
        after = _estimate(plan.ends_after, plan.end_is_estimated)
        head += "\n" + paragraph(f"the stream ends before, after {after} samples: {listed(plan.ended)} at the end")
    notes = "\n".join(paragraph(f"note: {note}") for note in plan.notes)
    advice = Text("\n").join(_advice(plan))
    balance, needs = "", plan.per_worker
    if (found := plan.balance) is not None:
        balance = paragraph(
            f"the slowest rank of a step has {found.loss_with:.3f} times the mean cost, without balance "
            f"{found.loss_without:.3f}; rows are {100 * found.fill:.1f} % full, without {100 * found.fill_without:.1f} "
            f"% (of {counted(found.steps, 'step')}, by the lengths of sampled records)"
        )
    unknown = f" (not known of {listed(needs.unknown)})" if needs.unknown else ""
    memory = paragraph(
        f"a worker holds at most {bytes_text(needs.held_bytes)} of shards{unknown}, beside functions and the process "
        f"itself (here {bytes_text(needs.process_bytes)}, mostly shared after a fork)"
    )
    parts = [Text(head), _sources(plan), advice, *map(Text, (notes, balance, memory, _draws(plan.draws)))]
    return Text("\n\n").join(part for part in parts if part)


def _sources(plan: RunPlan) -> Text:
    rows = [["source", "records", "tokens", "share", "samples", "epochs", "repeats at", "bytes"]]
    for source in plan.sources:
        epochs, repeat = source.epochs, source.first_repeat
        tokens, per = (source.tokens, "") if source.tokens is not None else (source.tokens_per_record, " each")
        row = [source.name, _estimate(source.records, source.records_are_estimated)]
        row.append("" if tokens is None else _estimate(tokens, bool(per) or source.tokens_are_estimated) + per)
        row += [percent_text(source.share), _estimate(source.samples, source.samples_are_estimated)]
        rounds = "" if epochs is None else f"{epochs:.3g}" if epochs < 1000 else count_text(epochs)  # noqa: PLR2004
        row.append("?" if epochs is None else f"{_about(source.epochs_are_estimated)}{rounds}")
        is_never = repeat is None and epochs is not None
        row.append("" if is_never else _estimate(repeat, source.first_repeat_is == "estimated"))
        rows.append([*row, "?" if source.bytes is None else bytes_text(source.bytes)])
    kept = [number for number, cells in enumerate(zip(*rows[1:], strict=True)) if not number or set(cells) - {"", "?"}]
    first, *lines = table([[*(row[number] for number in kept), ""] for row in rows], (0,)).split("\n")
    styled = (Text(line, _STYLES[each.level]) for line, each in zip(lines, plan.sources, strict=True))
    return Text("\n").join([Text(first), *styled])


def _advice(plan: RunPlan) -> Iterator[Text]:
    """Say what to do: a line for each of the worst sources, and one for all of which there is little to say."""
    seldom = [each for each in plan.sources if each.advice and each.level == FINE]
    unknown = [each for each in plan.sources if each.advice == NOT_COUNTED]
    others = [each for each in plan.sources if each.advice and each not in seldom and each not in unknown]
    others.sort(key=lambda source: -(source.epochs or 0.0))
    for source in others[:_MAX_ADVICE]:
        name = shortened(source.name, _MAX_NAME)
        text = f"{name}{':' if source.advice[0].isdigit() else ''} {source.advice}"
        yield Text(paragraph(text), _STYLES[source.level])
    if len(others) > _MAX_ADVICE:
        yield Text(f"and {len(others) - _MAX_ADVICE:,} sources more: --json says what to do about each")
    if seldom:
        read = listed([f"{shortened(each.name, _MAX_NAME)} ({percent_text(each.epochs or 0.0)})" for each in seldom])
        yield Text(paragraph(f"less than half is read of {read}: raise their percents, or leave them if that is meant"))
    if unknown:
        names = listed([shortened(each.name, _MAX_NAME) for each in unknown])
        yield Text(paragraph(f"{names}: {NOT_COUNTED}"), _STYLES[unknown[0].level])


def _draws(draws: Sequence[Draw]) -> str:
    if not draws:
        return ""
    rows = [["draw", "source", "clock", "epoch", "window", "block", "record"]]
    for draw in draws:
        block = "" if draw.block is None else f"{draw.block}"
        record = "" if draw.record is None else f", record {draw.record}"
        place = f"{draw.url}{record}" if draw.url else "" if draw.index is None else f"index {draw.index}"
        times = [f"{draw.clock:.3f}", f"{draw.epoch}", f"{draw.window}"]
        rows.append([f"{draw.number}", draw.source, *times, block, place])
    return "the first draws of rank 0, worker 0\n" + table(rows, (1, 6))


def _about(is_estimated: bool) -> str:
    return "≈ " if is_estimated else ""


def _estimate(number: float | None, is_estimated: bool) -> str:
    return "?" if number is None else _about(is_estimated) + count_text(number)

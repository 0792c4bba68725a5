"""A plan as text."""

from collections.abc import Iterator, Sequence
from typing import Final

from rich.text import Text

from streamdata.errors import counted, shortened
from streamdata.mixing.lengths import count_text
from streamdata.tools.plan.course import Draw
from streamdata.tools.plan.make_plan import FINE, HURTS, MIND, NOT_COUNTED, RunPlan, SourcePlan, listed
from streamdata.tools.view.tree import bytes_text, fitted, paragraph, percent_text

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
    ends = [Text(notes), Text(_balance(plan)), Text(_needs(plan)), Text(_draws(plan.draws))]
    parts = [Text(head), _sources(plan), advice, *ends]
    return Text("\n\n").join(part for part in parts if part)


def _sources(plan: RunPlan) -> Text:
    rows = [["source", "records", "tokens", "share", "samples", "epochs", "repeats at", "bytes"]]
    for source in plan.sources:
        epochs, repeat = source.epochs, source.first_repeat
        rounds = "" if epochs is None else f"{epochs:.3g}" if epochs < 1000 else count_text(epochs)  # noqa: PLR2004
        row = [source.name, _estimate(source.records, source.records_are_estimated), _tokens(source)]
        row += [percent_text(source.share), _estimate(source.samples, source.samples_are_estimated)]
        row.append("?" if epochs is None else f"{_about(source.epochs_are_estimated)}{rounds}")
        is_never = repeat is None and epochs is not None
        row.append("" if is_never else _estimate(repeat, source.first_repeat_is == "estimated"))
        rows.append([*row, "?" if source.bytes is None else bytes_text(source.bytes)])
    kept = [number for number, cells in enumerate(zip(*rows[1:], strict=True)) if not number or set(cells) - {"", "?"}]
    first, *lines = fitted([[*(row[number] for number in kept), ""] for row in rows]).split("\n")
    styled = (Text(line, _STYLES[each.level]) for line, each in zip(lines, plan.sources, strict=True))
    return Text("\n").join([Text(first), *styled])


def _tokens(source: SourcePlan) -> str:
    number, per = (source.tokens, "") if source.tokens is not None else (source.tokens_per_record, " each")
    return "" if number is None else _estimate(number, source.tokens_are_estimated or source.tokens is None) + per


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


def _balance(plan: RunPlan) -> str:
    if (found := plan.balance) is None:
        return ""
    return paragraph(
        f"the slowest rank of a step has {found.loss_with:.3f} times the mean cost, without balance "
        f"{found.loss_without:.3f}; rows are {100 * found.fill:.1f} % full, without {100 * found.fill_without:.1f} % "
        f"(of {counted(found.steps, 'step')}, by the lengths of sampled records)"
    )


def _needs(plan: RunPlan) -> str:
    needs = plan.per_worker
    unknown = f" (not known of {listed(needs.unknown)})" if needs.unknown else ""
    return paragraph(
        f"a worker holds at most {bytes_text(needs.held_bytes)} of shards{unknown}, beside functions and the process "
        f"itself (here {bytes_text(needs.process_bytes)}, mostly shared after a fork)"
    )


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
    return "the first draws of rank 0, worker 0\n" + fitted(rows, (1, 6))


def _about(is_estimated: bool) -> str:
    return "≈ " if is_estimated else ""


def _estimate(number: float | None, is_estimated: bool) -> str:
    return "?" if number is None else _about(is_estimated) + count_text(number)

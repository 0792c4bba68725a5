"""A profile as text, and as plain JSON."""

from dataclasses import asdict
from typing import Any

from streamdata.errors import one_line
from streamdata.tools.plan.plan_text import counted
from streamdata.tools.profile.make_profile import Profile
from streamdata.tools.view.table import percent_text, table


def profile_json(profile: Profile) -> dict[str, Any]:
    """The profile as plain JSON."""
    sources: dict[str, dict[str, float]] = {}
    for stage in profile.stages:
        of_source = sources.setdefault(stage.source, {})
        of_source[stage.stage] = of_source.get(stage.stage, 0.0) + stage.seconds
    whole = asdict(profile)
    whole["rates"] = [rate._asdict() for rate in profile.rates]
    whole["sources"] = [{"name": name, **stages} for name, stages in sources.items()]
    return whole


def profile_text(profile: Profile) -> str:
    """The profile for a person to read."""
    parts = [_stages(profile), f"most of all: {one_line(profile.advice)}" if profile.advice else "", _rates(profile)]
    return "\n\n".join(part for part in [*parts, _step(profile)] if part)


def _stages(profile: Profile) -> str:
    rows = [["source", "stage", "function", "of its time", ""]]
    for stage in profile.stages:
        cells = [one_line(stage.source) or "all", stage.stage, one_line(stage.function), percent_text(stage.share)]
        rows.append([*cells, ""])
    return f"where a worker's {profile.busy_s:.1f} s went\n{table(rows)}"


def _rates(profile: Profile) -> str:
    rows = [["workers", "samples/s", "first batch", ""]]
    for rate in profile.rates:
        knee = "more than this add little" if rate.workers == profile.knee else ""
        shown = f"{rate.samples_per_s:,.0f}" if rate.samples_per_s else "none in this time"
        rows.append([str(rate.workers), shown, f"{rate.first_batch_s:.2f} s", knee])
    return f"{table(rows)}\nthis machine has {counted(profile.cores, 'core')}; of more workers nothing is said"


def _step(profile: Profile) -> str:
    if profile.step_time_s is None or profile.wanted_samples_per_s is None:
        return ""
    wants = (
        f"a step of {profile.step_time_s:g} s with {profile.batch_size} samples needs "
        f"{profile.wanted_samples_per_s:,.0f} samples/s"
    )
    if profile.enough_workers is not None:
        who = counted(profile.enough_workers, "worker") if profile.enough_workers else "the trainer's own process"
        return f"{wants}: {who} can give it"
    best = max(profile.rates, key=lambda rate: rate.samples_per_s)
    most = f"at most {best.samples_per_s:,.0f} by {counted(best.workers, 'worker')}"
    return f"{wants}: more than was measured, {most}; what more cores would give is not said here"

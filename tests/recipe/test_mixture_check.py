from collections.abc import Callable
from pathlib import Path

import pytest

from streamdata import instantiate_from_yaml
from streamdata.errors import RecipeError
from streamdata.recipe.check import check_recipe

pytestmark = pytest.mark.usefixtures("zoo")
Write = Callable[..., str]


def problems_of(write: Write, *children: str) -> list[str]:
    """The first lines of what is wrong with the children, without what concerns the mixture's own class."""
    lines = "".join(f"\n    - {child}" for child in children) or " []"
    recipe = write(f"target: streamdata.MergedDataset\nparams:\n  datasets:{lines}\n")
    found = [str(problem).split("\n")[0] for problem in check_recipe(recipe, imports=["zoo"])]
    return [line for line in found if ": target: " not in line and ": root (" not in line]


def child(extra: str, target: str = "zoo.Point") -> str:
    """A source of a class that neither names nor weighs itself."""
    return f"{{target: {target}, params: {{x: 1}}{extra}}}"


def test_sound_children_are_accepted(write: Write) -> None:
    """Unique names, positive weights that need not add to one."""
    assert problems_of(write, child(", name: a, percent: 1"), child(", name: b, percent: 2.5")) == []


OURS = "{target: streamdata.CsvDataset, params: {path: x}%s}"


def test_every_bad_child_is_reported(write: Write) -> None:
    """All at once, each with its location."""
    found = problems_of(
        write,
        OURS % ", name: a, percent: 1",
        OURS % ", name: a, percent: 1",
        OURS % ", name: a.b, percent: 0",
        OURS % ", percent: .nan",
        OURS % ", name: '', percent: -1",
        OURS % ", name: d",
        OURS % ", name: e, percent: yes",
        OURS % ", name: f, percent: .inf",
    )
    assert [line.removeprefix("recipe.yaml:") for line in found] == [
        "5:64: params.datasets[1].name: expected a unique name, got 'a' again, first at recipe.yaml:4:64",
        "6:64: params.datasets[2].name: expected a unique name without '.', got 'a.b'",
        "7:7: params.datasets[3]: expected a unique name without '.', got None",
        "7:67: params.datasets[3].percent: expected a positive number as percent, got nan",
        "8:64: params.datasets[4].name: expected a unique name without '.', got ''",
        "8:77: params.datasets[4].percent: expected a positive number as percent, got -1",
        "9:7: params.datasets[5]: expected a positive number as percent, got None",
        "10:76: params.datasets[6].percent: expected a positive number as percent, got True",
        "11:76: params.datasets[7].percent: expected a positive number as percent, got inf",
    ]


def test_schedules_sizes_and_zeros_are_accepted(write: Write) -> None:
    """As the mixture takes them."""
    percents = [
        "[[0, 1], [1e6, 0.5]]",
        "{steps: [[0, 1], [10, 0]]}",
        "{by: tokens}",
        "0",
        "{by: records, exponent: 0.7}",
    ]
    children = [child(f", name: s{number}, percent: {percent}") for number, percent in enumerate(percents)]
    assert problems_of(write, *children) == []


def test_a_schedule_that_is_not_one_is_reported(write: Write) -> None:
    """With what is wrong in it; and that nothing is left of a mixture."""
    percents = ["[]", "[[5, 1], [5, 2]]", "[[0, -1]]", "{steps: 1}", "{by: bytes}", "{exponent: 2}"]
    found = problems_of(write, *(child(f", name: s{number}, percent: {p}") for number, p in enumerate(percents)))
    assert [line.partition(".percent: ")[2] for line in found] == [
        "expected a list of [time, percent] as percent, got []",
        "expected times that increase in the schedule of percent, got 5 after 5",
        "expected [time, percent], two numbers >= 0, in the schedule of percent, got [0, -1]",
        "expected a list of [time, percent] as percent, got 1",
        "expected one of tokens, records as by in percent, got 'bytes'",
        "expected 'steps', or 'by' and if need be 'exponent' in percent, got {'exponent': 2}",
    ]
    (found,) = problems_of(write, child(", name: a, percent: 0"))
    assert found.endswith("datasets: expected a positive number as percent of some dataset, got 0 of all")


def test_no_datasets_is_an_error(write: Write) -> None:
    """An empty list mixes nothing."""
    recipe = write("target: streamdata.MergedDataset\nparams: {datasets: []}\n")
    assert any("expected a list of datasets, got []" in problem.message for problem in check_recipe(recipe))


def test_included_children_bring_their_names(write: Write) -> None:
    """The include's own keys override those of the included root."""
    write(child(", name: inner, percent: 1"), "inner.yaml")
    assert problems_of(write, "{include: inner.yaml}", "{include: inner.yaml, name: other}") == []
    assert "'inner' again" in problems_of(write, "{include: inner.yaml}", "{include: inner.yaml}")[0]
    assert "got -1" in problems_of(write, "{include: inner.yaml, percent: -1}")[0]


MIXTURE = "{target: streamdata.MergedDataset, name: %s, percent: 1, params: {%sdatasets: [%s]}}"
ROWS = "{target: streamdata.JsonlIterableDataset, params: {path: x}, name: rows, percent: 1}"


def test_a_finite_mixture_within_an_endless_one_is_reported(write: Write) -> None:
    """Where it stands, also below another one and by an include; not where nobody knows it yet."""
    finite = MIXTURE % ("finite", "cyclic: false, ", ROWS)
    write(finite, "finite.yaml")
    found = problems_of(write, finite, MIXTURE % ("middle", "", "{include: finite.yaml}"))
    assert sorted(line.partition(": ")[2] for line in found) == [
        f"params.datasets[{where}]: expected cyclic: true in a mixture within a cyclic one, got cyclic: false"
        for where in ("0", "1].params.datasets[0")
    ]
    assert problems_of(write, MIXTURE % ("both", "cyclic: false, ", finite))[1:] == []
    assert problems_of(write, MIXTURE % ("unknown", "cyclic: '${variables:ends}', ", finite))[1:] == []


def test_a_finite_mixture_within_an_endless_one_is_not_built(write: Write, tmp_path: Path) -> None:
    """The error names both, their places and what to write."""
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n')
    finite = MIXTURE % ("finite", "cyclic: false, ", ROWS.replace("path: x", f"path: {tmp_path}/rows.jsonl"))
    text = f"""\
        target: streamdata.MergedDataset
        params:
          datasets:
            - target: streamdata.MergedDataset
              params: {{name: outer, percent: 1, datasets: [{finite}]}}
        """
    with pytest.raises(RecipeError, match=r"recipe\.yaml:4:7: params\.datasets\[0\]") as error:
        instantiate_from_yaml(write(text))
    assert "mixture 'finite' at recipe.yaml:5:" in str(error.value)
    assert "Write `cyclic: true` in 'finite', or list its sources in the mixture 'outer' around it" in str(error.value)


def test_what_only_building_tells_is_not_reported(write: Write) -> None:
    """Dynamic children, unknown values, and what others build, which may name and weigh itself."""
    assert problems_of(write, "${dynamic_objs:x}", child(", name: a, percent: 1")) == []
    assert problems_of(write, "{target: zoo.double, params: {x: 1}}") == []
    found = problems_of(write, child(", name: '${variables:n}', percent: '${variables:p}'"))
    assert all("no variable" in line for line in found)


def test_our_sources_take_name_and_weight_as_parameters_too(write: Write) -> None:
    """They have neither by themselves, whichever way they are built."""
    ours = "{target: streamdata.JsonlIterableDataset, params: {path: x%s}}"
    loaded = "{target: streamdata.DatasetFactory.load, params: {train_type: seq, load_path: x, window_size: 4}}"
    assert problems_of(write, ours % ", name: a, percent: 1", ours % ", name: b, percent: 2") == []
    found = problems_of(write, ours % ", name: a, percent: -1", ours % ", name: a, percent: 1", loaded)
    assert [line.partition(": ")[2] for line in found] == [
        "params.datasets[0].params.percent: expected a positive number as percent, got -1",
        "params.datasets[1].params.name: expected a unique name, got 'a' again, first at recipe.yaml:4:73",
        "params.datasets[2]: expected a unique name without '.', got None",
        "params.datasets[2]: expected a positive number as percent, got None",
    ]


def test_what_an_interpolation_gives_is_not_told(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be of the environment: neither as a weight, nor as a name, nor as a target."""
    monkeypatch.setenv("CANARY", "canary.7d1f")
    env = "${oc.env:CANARY}"
    for text in (f", name: a, percent: '{env}'", f", name: '{env}', percent: 1", f", name: a, percent: [[0, '{env}']]"):
        (problem,) = problems_of(write, child(text))
        assert f"got {env!r}" in problem or f"{env!r}]" in problem
        assert "canary" not in problem
    recipe = write(f"target: {env}\nparams: {{}}\n")
    assert "canary" not in "".join(map(str, check_recipe(recipe)))
    with pytest.raises(RecipeError, match="the name that an interpolation gives is refused") as error:
        instantiate_from_yaml(recipe)
    assert "canary" not in str(error.value)

"""Which files a recipe includes, and that nothing of what is no recipe is told."""

import os
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from streamdata import instantiate_from_yaml
from streamdata.errors import RecipeError
from streamdata.recipe.check import check_recipe

Write = Callable[..., str]
CANARY = "sk-canary-7d1f"


@pytest.fixture
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file that is neither beside the recipe nor below the working directory."""
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "part.yaml").write_text("[1]")
    return folder


def test_an_include_leads_out_of_no_folder(write: Write, elsewhere: Path) -> None:
    """By an absolute name, by dots, by a link to the file or to its folder."""
    Path(write("[]", "link.yaml")).unlink()
    Path("link.yaml").symlink_to(elsewhere / "part.yaml")
    Path("folder").symlink_to(elsewhere)
    dots = os.path.relpath(elsewhere / "part.yaml")
    for name in (str(elsewhere / "part.yaml"), dots, "link.yaml", "folder/part.yaml"):
        recipe = write(f"a: {{include: {name}}}")
        with pytest.raises(RecipeError, match=r"recipe\.yaml:1:14: a.include: .* lies outside .*\n.*include_roots"):
            instantiate_from_yaml(recipe)
        assert len(check_recipe(recipe)) == 1
        assert instantiate_from_yaml(recipe, include_roots=[elsewhere]) == {"a": [1]}
        assert check_recipe(recipe, include_roots=[str(elsewhere)]) == []


def test_a_name_that_no_disk_takes_is_a_problem(write: Write) -> None:
    """One of 255 bytes and more, with a line end in it: told on one line."""
    recipe = write('a: {include: "b\\n' + "b" * 300 + '.yaml"}')
    (problem,) = check_recipe(recipe)
    assert "was not found\n  Looked for" in problem.message
    assert problem.message.count("\n") == 1
    with pytest.raises(RecipeError, match="was not found"):
        instantiate_from_yaml(recipe)


def test_a_recipe_that_is_a_link_includes_what_is_beside_either(write: Write, elsewhere: Path) -> None:
    """Its caller chose it."""
    (elsewhere / "recipe.yaml").write_text(f"- {{include: {elsewhere}/part.yaml}}\n- {{include: own.yaml}}")
    write("[2]", "own.yaml")
    link = Path(write("", "link.yaml"))
    link.unlink()
    link.symlink_to(elsewhere / "recipe.yaml")
    assert instantiate_from_yaml(link) == [[1], [2]]


def test_an_include_is_a_regular_file_of_yaml(write: Write) -> None:
    """Nothing is opened that waits, never ends, or is something else."""
    folder = Path(write("a: 1", "settings.txt")).parent
    os.mkfifo(folder / "fifo.yaml")
    (folder / "folder.yaml").mkdir()
    (folder / "text.yaml").symlink_to(folder / "settings.txt")
    problems = {
        "settings.txt": r"expected a file of \.yaml or \.yml, got 'settings.txt'",
        "fifo.yaml": "expected a regular file, got a fifo",
        "folder.yaml": "expected a regular file, got a directory|Is a directory",
        "text.yaml": r"expected a file of \.yaml or \.yml, got the link",
        "a" * 5000 + ".yaml": r"expected a file of \.yaml or \.yml, got 'a{98}…'",
    }
    for name, problem in problems.items():
        with pytest.raises(RecipeError, match=problem):
            instantiate_from_yaml(write(f"a: {{include: {name}}}"))


@pytest.mark.parametrize("roots", ["folder", ["/no/such/folder"]])
def test_roots_are_folders(write: Write, roots: object) -> None:
    """A single text would be a list of letters."""
    with pytest.raises(ValueError, match="include_roots: expected"):
        instantiate_from_yaml(write("a: 1"), include_roots=roots)


def everything(error: BaseException | None) -> str:
    """An error, all that Python shows of it, and all errors below it, shown or not."""
    text = ""
    while error is not None:
        text += "".join(traceback.format_exception(error)) + repr(error) + repr(getattr(error, "object", ""))
        error = error.__cause__ or error.__context__
    return text


@pytest.mark.parametrize(
    "content",
    [
        CANARY,
        f"user:{CANARY}:0:0\nother:x\n",
        f"KEY={CANARY}\n",
        f"[section\nkey = {CANARY}\n",
        f"a: b: {CANARY}\n",
        f'"{CANARY}\n',
        f"a: *{CANARY}\n",
        f"a: &{CANARY} 1\nb: &{CANARY}x [*{CANARY}, *{CANARY}y]\n",
        f"%{CANARY}\n",
        f"a: !!int {CANARY}\n",
        f"a: !!bool '{CANARY}'\n",
        f"? [{CANARY}]\n: 1\n",
        f"a: {CANARY}\nb: \xff",
        f"a: {CANARY}\n\tb: 1\n",
        f"a: '${{{CANARY}'\n",
        f"a: '${{a:[{CANARY}'\n",
        f"a: '{CANARY} ${{'\n",
        f"a: '${{variables:x,[{CANARY}}}'\n",
        f"a: '${{variables:x,[${{y}} {CANARY}]}}'\n",
        f"a: '${{dynamic_objs:x,{CANARY}}}'\n",
        f"a: ${{b}}\nb: '${{{CANARY}'\n",
        f"a: ${{b.${{b}}}}\nb: {{c: {CANARY}}}\n",
        f"a: {CANARY} \x07\n",
        f"<<: {CANARY}\n",
        f"target: [{CANARY * 20}]\n" + "x" * 200,
    ],
)
def test_no_error_quotes_a_line_of_an_included_file(write: Write, content: str) -> None:
    """Whatever it is: not in the message, nor in causes, contexts and tracebacks."""
    Path(write("", "inner.yaml")).write_bytes(content.encode("latin-1"))
    for recipe in (write("include: inner.yaml"), "inner.yaml"):
        with pytest.raises(RecipeError) as caught:
            instantiate_from_yaml(recipe)
        assert "inner.yaml:" in str(caught.value)
        assert CANARY not in everything(caught.value)
        assert CANARY not in "".join(map(str, check_recipe(recipe)))


def test_names_of_keys_are_escaped_and_cut(write: Write) -> None:
    """A terminal obeys nothing of a recipe."""
    recipe = write('"\\e[31mred": 1\n"\\e[31mred": 2\n"' + "k" * 500 + '": 1\n"' + "k" * 500 + '": 2\n')
    problems = [str(problem) for problem in check_recipe(recipe)]
    assert len(problems) == 2
    assert r"'\x1b[31mred' is given twice" in problems[0]
    assert not any(character in "".join(problems) for character in ("\x1b", "k" * 101))

import io

from rich.console import Console

from streamdata.tools.cli.messages import Ticker


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def shown(file: io.StringIO, times: list[float], **environment: str) -> str:
    """What comes out when a line is offered at these times."""
    clock = Clock()
    with Ticker(Console(file=file, width=40, _environ={"TERM": "xterm", **environment}), clock) as ticker:
        for now in times:
            clock.now = now
            ticker.tick(lambda: f"at {clock.now:.1f}")
    return file.getvalue()


def test_plain_lines_come_once_a_second() -> None:
    """Nothing but text and newlines."""
    assert shown(io.StringIO(), [0.5, 1.0, 1.5, 1.9, 2.0, 2.1, 7.0]) == "at 1.0\nat 2.0\nat 7.0\n"


def test_on_a_terminal_the_line_is_renewed_in_place() -> None:
    """From the first on, more often, without newlines between, and it is gone at the end."""
    text = shown(Terminal(), [0.0, 0.1, 0.3, 0.6])
    assert "at 0.1" not in text
    assert "at 0.0\r\x1b[2Kat 0.3\r\x1b[2Kat 0.6" in text
    assert text.endswith("\x1b[2K")


def test_a_terminal_that_cannot_go_back_gets_plain_lines() -> None:
    """Such as an editor's."""
    assert shown(Terminal(), [0.5, 1.0], TERM="dumb") == "at 1.0\n"


def test_a_line_is_only_made_when_it_is_shown() -> None:
    """Counting shares of many sources takes time."""
    made = []
    with Ticker(Console(file=io.StringIO()), Clock()) as ticker:
        ticker.tick(lambda: made.append(1) or "")
    assert made == []

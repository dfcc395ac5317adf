"""Lines of progress where there is no terminal, and a pipe that nobody reads."""

from __future__ import annotations

import pytest

from pipeline import console


def test_the_end_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    with console.progress("it", total=2, unit="steps") as bar:
        bar.advance(2)
        bar.advance(0)
        bar.advance(0)
    assert capsys.readouterr().err == "it: 2/2 steps\n"


def test_what_an_earlier_attempt_has_done_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with console.progress("it", total=3, unit="steps", done=1) as bar:
        bar.advance(2)
    assert capsys.readouterr().err == "it: continues after 1 of 3 steps\nit: 3/3 steps\n"


def test_the_first_line_comes_after_two_seconds_and_the_next_after_a_minute(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: clock[0])
    with console.progress("it", total=9, unit="steps") as bar:
        for clock[0] in (1.0, 3.0, 60.0, 64.0):
            bar.advance()
    assert capsys.readouterr().err == "it: 2/9 steps\nit: 4/9 steps\n"


def test_a_pipe_that_is_not_the_output_breaks_as_an_error() -> None:
    """One to a server, say: what went wrong has to be seen."""

    def main() -> None:
        raise BrokenPipeError("to a server")

    with pytest.raises(BrokenPipeError, match="to a server"):
        console.run(main)

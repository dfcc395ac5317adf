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


def test_a_pipe_that_is_not_the_output_breaks_as_an_error() -> None:
    """One to a server, say: what went wrong has to be seen."""

    def main() -> None:
        raise BrokenPipeError("to a server")

    with pytest.raises(BrokenPipeError, match="to a server"):
        console.run(main)

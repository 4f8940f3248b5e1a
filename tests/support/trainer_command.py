"""What a refusal of the trainer's command prints."""

from __future__ import annotations

import pytest

from trainer.run import main


def refusal(capfd: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line on stderr of a command that is refused."""
    assert main([str(argument) for argument in arguments]) == 2
    output = capfd.readouterr()
    assert "Traceback" not in output.out + output.err
    (line,) = output.err.splitlines()
    assert line.startswith("error: ")
    return line

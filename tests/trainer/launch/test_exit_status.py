"""How a command ends whose work is done, is stopped by a signal, or loses its workers."""

from __future__ import annotations

import os
import signal

import pytest

from pipeline.signals import StopRequest
from trainer.launch import WorkerError, run_to_the_end


def stop_by(number: signal.Signals, *, stop: StopRequest) -> str | None:
    os.kill(os.getpid(), number)
    return None if stop else "went on"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_work_and_gives_the_status(
    number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_to_the_end(lambda stop: stop_by(number, stop=stop)) == 128 + number
    assert capsys.readouterr().out == "stopped; the same command continues from here\n"


def test_the_line_of_the_work_is_the_last(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_to_the_end(lambda stop: '{"value": 1}') == 0
    assert capsys.readouterr().out == '{"value": 1}\n'


def test_lost_workers_are_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    def lose(stop: StopRequest) -> str | None:
        raise WorkerError("worker 1 was lost")

    assert run_to_the_end(lose) == 1
    assert capsys.readouterr() == ("", "error: worker 1 was lost\n")

"""Clocks that jump under a run, and a driver that freezes; the clock of the machine itself is left alone."""

from __future__ import annotations

import signal
import struct
import subprocess
import time
from pathlib import Path

from .findings import Finding, judge
from .runs import ChaosError, Stage
from .set_faults import error_of

_SOURCE = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long ahead(void) {
    static volatile long *shared;
    if (!shared) {
        int file = open(getenv("CHAOS_CLOCK"), O_RDONLY);
        shared = mmap(0, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
        close(file);
    }
    return *shared;
}
int clock_gettime(clockid_t clock, struct timespec *found) {
    int status = syscall(SYS_clock_gettime, clock, found);
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) found->tv_sec += ahead();
    return status;
}
int gettimeofday(struct timeval *found, void *zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    found->tv_sec = now.tv_sec;
    found->tv_usec = now.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *found) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (found) *found = now.tv_sec;
    return now.tv_sec;
}
"""
"""A library that puts the time of day of a process ahead by as many seconds as a file says."""
FREEZE_S = 20.0


class Clock:
    """The time of day of a run's processes. `environment`: theirs."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._file, source, library = folder / "ahead", folder / "clock.c", folder / "clock.so"
        self.jump(0)
        source.write_text(_SOURCE)
        command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise ChaosError(f"a C compiler is needed to play this fault ({error})") from error
        self.environment = {"LD_PRELOAD": str(library), "CHAOS_CLOCK": str(self._file)}

    def jump(self, seconds: int) -> None:
        """Put all clocks ahead (of the machine's) by so many seconds."""
        mode = "r+b" if self._file.exists() else "wb"
        with open(self._file, mode) as stream:
            stream.write(struct.pack("l", seconds))


def jump_forward(stage: Stage) -> Finding:
    """The clock jumps a day ahead in a step."""
    return _jump(stage, 24 * 3600, name="clock-forward", fault="the clock jumps a day ahead")


def jump_back(stage: Stage) -> Finding:
    """The clock jumps ten years back in a step."""
    return _jump(stage, -10 * 365 * 24 * 3600, name="clock-back", fault="the clock jumps ten years back")


def _jump(stage: Stage, seconds: int, *, name: str, fault: str) -> Finding:
    """The run goes on; stopped and given again, with the clock back at its place, it goes on too."""
    clock = Clock(stage.folder / f"{name}-library")
    run, broken = stage.make_run(name), []
    command = run.start(**clock.environment)
    run.wait_for_step(12)
    clock.jump(seconds)
    run.wait_for_step(27)
    command.process.send_signal(signal.SIGTERM)
    status = command.wait()
    if status != 128 + signal.SIGTERM:
        broken.append(f"status {status}: {error_of(run)}")
    clock.jump(0)
    since = time.monotonic()
    run.start()
    happened = "no step took notice; stopped and given again with the clock set right, the command went on"
    return judge(run, fault=fault, happened=happened, since=since, repeated=0, broken=broken)


def freeze_the_driver(stage: Stage) -> Finding:
    """SIGSTOP of the command, not of its workers, for 20 s: they wait for nobody, or for it; then all goes on."""
    run = stage.make_run("driver-frozen")
    command = run.start()
    run.wait_for_step(12)
    command.process.send_signal(signal.SIGSTOP)
    time.sleep(FREEZE_S)
    since = time.monotonic()
    command.process.send_signal(signal.SIGCONT)
    run.finish()
    broken = ["the workers were started again"] if run.says("starting the workers again") else []
    happened = "its workers were not disturbed; it woke up and went on"
    fault = f"the command freezes for {FREEZE_S:.0f} s"
    return judge(run, fault=fault, happened=happened, since=since, repeated=0, broken=broken)


def freeze_the_driver_under_ray(stage: Stage) -> Finding:
    """The same with the workers under Ray."""
    run = stage.make_run("driver-frozen-ray")
    command = run.start("launcher=ray")
    run.wait_for_step(12)
    command.process.send_signal(signal.SIGSTOP)
    time.sleep(FREEZE_S)
    since = time.monotonic()
    command.process.send_signal(signal.SIGCONT)
    run.finish()
    happened = "it woke up and went on"
    fault = f"the command freezes for {FREEZE_S:.0f} s, under Ray"
    return judge(run, fault=fault, happened=happened, since=since, repeated=0)


def bury_the_frozen(stage: Stage) -> Finding:
    """A frozen command lives: another is refused. Once the frozen one is killed, its workers end and another goes on.

    The workers are held up too, so that the run is not over before.
    """
    run, broken = stage.make_run("driver-frozen-killed"), []
    first = run.start()
    run.wait_for_step(12)
    worker = run.wait_for_worker(1)
    worker.send_signal(signal.SIGSTOP)
    first.process.send_signal(signal.SIGSTOP)
    status = run.start().wait()
    if status != 2 or not run.says(f"^error: output=.*another command works there .process {first.process.pid} on"):
        broken.append(f"the second ended with status {status}: {error_of(run)}")
    first.process.kill()
    worker.send_signal(signal.SIGCONT)
    first.wait()
    since = time.monotonic()
    run.start()
    happened = "another command was refused with status 2; once the frozen one was killed, the same command resumed"
    return judge(run, fault="the command freezes and is killed", happened=happened, since=since, broken=broken)


FAULTS = (jump_forward, jump_back, freeze_the_driver, freeze_the_driver_under_ray, bury_the_frozen)

"""From a command to running workers: checks, dry run, restarts, processes of this machine. `ray_train` and
`elastic` load Ray: import them late."""

from trainer.launch import dry_run, processes
from trainer.launch.failures import WorkerError
from trainer.launch.preflight import SAMPLE_CONFIG, check, read_config
from trainer.launch.ray_dashboard import send_token
from trainer.launch.restarts import run_attempts
from trainer.launch.run_directory import check_fresh, write_config

__all__ = [
    "SAMPLE_CONFIG",
    "WorkerError",
    "check",
    "check_fresh",
    "dry_run",
    "processes",
    "read_config",
    "run_attempts",
    "send_token",
    "write_config",
]

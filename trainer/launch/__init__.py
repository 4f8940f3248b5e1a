"""Everything between the command line and running workers: checks, dry run, restarts, worker processes.

Import `ray_train` and `elastic` only when needed, because they load Ray.
"""

from trainer.launch import dry_run, processes
from trainer.launch.exit_status import run_to_the_end
from trainer.launch.failures import WorkerError
from trainer.launch.preflight import SAMPLE_CONFIG, check, read_config, resolve_paths
from trainer.launch.ray_dashboard import send_token
from trainer.launch.restarts import restart_workers
from trainer.launch.run_directory import write_config
from trainer.launch.start import train

"""Files for Slurm (`sbatch`) and SkyPilot (`sky launch`). Each file runs one job on a Ray cluster of its own."""

from __future__ import annotations

import shlex
from typing import Any

from cluster.render.values import SkyValues, SlurmValues

Tree = dict[str, Any]

NOTICE_S = 300
"""Seconds before the job's time limit at which Slurm sends the signal to stop."""


def render_slurm(values: SlurmValues) -> str:
    """Return the text of a batch script that runs Ray on every node, and the training command on the first node.

    Shortly before the time limit, the command writes a checkpoint, and the job goes back into the queue.
    """
    group = values.gpu
    driver = shlex.quote(f'echo $$ > "$0"; export RAY_ADDRESS="$1"; exec {values.command}')
    return f"""\
#SBATCH --job-name={values.name}-train
#SBATCH --account={values.account}
#SBATCH --partition={values.partition}
#SBATCH --nodes={group.max_nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={group.gpus}
#SBATCH --cpus-per-task={group.cpus}
#SBATCH --mem={group.memory_gib}G
#SBATCH --time={values.hours}:00:00
#SBATCH --exclusive
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
#SBATCH --signal=B:TERM@{NOTICE_S}
set -euo pipefail

cd "{values.repository}"
export PATH="$PWD/.venv/bin:$PATH"
export NCCL_SOCKET_IFNAME="{values.network_interface}" NCCL_DEBUG=WARN

# The job's own token: without it, everybody on the nodes' network could run code on this Ray.
export RAY_AUTH_MODE=token
RAY_AUTH_TOKEN=$(python -c 'import secrets; print(secrets.token_hex(32))')
export RAY_AUTH_TOKEN
export RAY_USAGE_STATS_ENABLED=0
export RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT={values.boot_timeout_s}

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((20000 + SLURM_JOB_ID % 10000))
driver="$PWD/.slurm-driver-$SLURM_JOB_ID.pid"
trap 'rm -f "$driver"' EXIT

# Near the time limit only the command's process gets the signal. It writes a checkpoint and ends with status 143; then
# the job goes back into the queue and continues from the checkpoint.
stopped=0
tell_driver() {{
    stopped=1
    srun --overlap --nodes=1 --ntasks=1 --cpus-per-task=1 --nodelist="$head" bash -c "kill -TERM \\$(cat '$driver')"
}}
trap tell_driver TERM

export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"  # srun does not inherit it from sbatch
srun ray symmetric-run --address "$head:$port" --min-nodes "$SLURM_JOB_NUM_NODES" \\
    --num-cpus={group.cpus} --num-gpus={group.gpus} --disable-usage-stats -- \\
    bash -c {driver} "$driver" "$head:$port" &
work=$!
status=0
wait "$work" || status=$?
if [ "$stopped" = 1 ]; then
    wait "$work" || true
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
fi
exit "$status"
"""


def render_skypilot(values: SkyValues) -> Tree:
    """Return a SkyPilot task that copies this checkout to the nodes and trains there. SkyPilot runs a Ray of its own on
    the nodes, so the task starts a second Ray with other ports and folders.

    The task mounts no bucket, because files in a mounted bucket cannot be renamed. So data and output must be addresses
    of an object store.
    """
    start = f"--num-cpus={values.gpu.cpus} --num-gpus={values.gpu.gpus} --temp-dir=/tmp/cloze --disable-usage-stats"
    return {
        "name": f"{values.name}-train",
        "workdir": ".",
        "num_nodes": values.gpu.max_nodes,
        "resources": {
            "infra": values.infra,
            "accelerators": values.accelerators,
            "cpus": f"{values.gpu.cpus}+",
            "memory": f"{values.gpu.memory_gib}+",
            "use_spot": values.use_spot,
            "disk_size": values.gpu.disk_gib,
            "job_recovery": {"strategy": "EAGER_NEXT_REGION", "max_restarts_on_errors": 2},
        },
        "envs": {"RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0", "NCCL_DEBUG": "WARN"},
        "secrets": {"RAY_AUTH_TOKEN": None},
        "setup": """\
set -euo pipefail
python3 -m pip install --quiet --user uv
python3 -m uv venv --quiet --python 3.12 ~/cloze
python3 -m uv pip install --quiet --python ~/cloze/bin/python -c constraints.txt -e '.[pipeline,trainer]'
""",
        "run": f"""\
set -euo pipefail
source ~/cloze/bin/activate
head=$(echo "$SKYPILOT_NODE_IPS" | head -n 1)
if [ "$SKYPILOT_NODE_RANK" != 0 ]; then
    until ray health-check --address="$head:6385"; do sleep 5; done
    ray start --address="$head:6385" {start} --block || true
    exit 0
fi
ray start --head --node-ip-address="$head" --port=6385 --include-dashboard=false {start} --block &
ray_head=$!
trap 'kill "$ray_head" || true' EXIT
until ray health-check --address="$head:6385"; do kill -0 "$ray_head"; sleep 5; done
export RAY_ADDRESS="$head:6385"
{values.command}
""",
    }

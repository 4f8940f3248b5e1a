"""Files for Slurm (`sbatch`) and SkyPilot (`sky launch`). Each file runs one job on a Ray cluster of its own."""

from __future__ import annotations

import json
import shlex
from typing import Any, Literal

from cluster import PREPROCESSING
from cluster.render.batch_values import SkyValues, SlurmValues

Tree = dict[str, Any]

OLDEST_DRIVER = 580
"""Oldest driver of NVIDIA for CUDA 13 (CUDA Toolkit 13.0 Release Notes, "CUDA Driver"). SkyPilot chooses the image, and
that for EFA on AWS has 570 (skypilot-org/skypilot#8746, #9406); torch would then see no GPU."""
NOTICE_S = 300
"""Seconds before the job's time limit at which Slurm sends the signal to stop."""


def render_slurm(values: SlurmValues, *, work: Literal["train", "preprocess"]) -> str:
    """Return the text of a batch script that runs Ray on every node, and the command for `work` on the first node.

    The batch shell tells the command to stop in two cases. Slurm sends USR1 shortly before the time limit: the job then
    goes back into the queue. `scancel --batch --signal=TERM JOB` sends TERM: the job then ends for good. A plain
    `scancel` sends TERM to all processes at once, Ray's included, so it leaves no checkpoint (Slurm 26.05,
    src/slurmd/slurmd/req.c, _rpc_terminate_job; scancel(1)).

    In a job array, the last task has the array's own id as SLURM_JOB_ID, and `scontrol requeue` with that id takes all
    tasks (Slurm 26.05, src/slurmctld/job_mgr.c, job_requeue2). So the script names the task. Two tasks may run on one
    node after another, so each has its own port and folder.
    """
    group, command = (values.gpu, values.commands.train)
    kind = [f"#SBATCH --partition={values.partition}", f"#SBATCH --gpus-per-node={group.gpus}"]
    start = f"--num-cpus={group.cpus} --num-gpus={group.gpus}"
    goes_on = "It writes a checkpoint and ends with status 143"
    if work == "preprocess":
        group, command = values.cpu, values.commands.preprocess
        kind = [f"#SBATCH --partition={values.cpu_partition}"]
        resources = shlex.quote(json.dumps({PREPROCESSING: group.cpus}, separators=(",", ":")))
        start = f"--num-cpus={group.cpus} --num-gpus=0 --resources={resources}"
        goes_on = "It ends with status 143 and keeps finished shards"
    asked = "\n".join(kind)
    driver = shlex.quote(f'echo $$ > "$0"; export RAY_ADDRESS="$1"; exec {command}')
    return f"""\
#SBATCH --job-name={values.name}-{work}
#SBATCH --account={values.account}
{asked}
#SBATCH --nodes={group.max_nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task={group.cpus}
#SBATCH --mem={group.memory_gib}G
#SBATCH --time={values.hours}:00:00
#SBATCH --exclusive
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
#SBATCH --signal=B:USR1@{NOTICE_S}
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

task=${{SLURM_ARRAY_JOB_ID:+${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}}}
task=${{task:-$SLURM_JOB_ID}}
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | awk 'NR == 1')
# Ray compares addresses, not names. A host may know its own name as 127.0.1.1, so take the first other address.
head=$(srun --nodes=1 --ntasks=1 --nodelist="$first" bash -c 'hostname --ip-address; hostname --all-ip-addresses' |
    tr ' ' '\\n' | awk '/^[0-9.]+$/ && !/^127\\./ && !found {{ print; found = 1 }}')
[ -n "$head" ] || {{ echo "error: $first has no IPv4 address but 127.*" >&2; exit 1; }}
port=$((20000 + SLURM_JOB_ID % 10000))
export RAY_TMPDIR="/tmp/cloze-$SLURM_JOB_ID"  # Ray's folder; short, because sockets lie in it
driver="$PWD/.slurm-driver-$SLURM_JOB_ID.pid"
clean() {{
    rm -f "$driver"
    srun --overlap --ntasks-per-node=1 rm -rf "$RAY_TMPDIR" || true
}}
trap clean EXIT

# Only the command's process gets the signal, because Ray must still run.
# {goes_on}. An error in here must not end this script, so nothing may fail.
again=0
heard=0
tell_driver() {{
    heard=$((heard + 1))
    for _ in $(seq 60); do
        [ -s "$driver" ] && break
        kill -0 "$work" 2> /dev/null || return 0
        sleep 1
    done
    srun --overlap --nodes=1 --ntasks=1 --cpus-per-task=1 --nodelist="$first" \\
        bash -c "kill -TERM \\$(cat '$driver')" || echo "the command did not get the signal; it has ended already" >&2
}}
trap 'again=1; tell_driver' USR1  # the time limit is near: go on later
trap 'again=0; tell_driver' TERM  # scancel --batch --signal=TERM: stop for good

rm -f "$driver"
export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"  # srun does not inherit it from sbatch
srun ray symmetric-run --address "$head:$port" --min-nodes "$SLURM_JOB_NUM_NODES" \\
    {start} --disable-usage-stats -- \\
    bash -c {driver} "$driver" "$head:$port" &
work=$!
while true; do  # a signal ends the wait, not the job
    before=$heard
    status=0
    wait "$work" || status=$?
    [ "$heard" = "$before" ] && break
done
if [ ! -s "$driver" ]; then
    echo "error: the command never started; see above why Ray did not" >&2
    exit 1
fi
if [ "$again" = 1 ] && [ "$status" = 143 ]; then
    scontrol requeue "$task"
    exit 0
fi
exit "$status"
"""


def render_skypilot(values: SkyValues) -> Tree:
    """Return a SkyPilot task that copies this checkout to the nodes and trains there. SkyPilot runs a Ray of its own on
    the nodes, so the task starts a second Ray with other ports and folders.

    The task mounts no bucket, because files in a mounted bucket cannot be renamed. So data and output must be addresses
    of an object store. On spot nodes each node watches for the notice of AWS or Google Cloud.
    """
    start = f"--num-cpus={values.gpu.cpus} --num-gpus={values.gpu.gpus} --temp-dir=/tmp/cloze --disable-usage-stats"
    # The address is needed: without it, the watcher would find SkyPilot's Ray.
    watch = (
        'python -m cluster.notice --watch --address="$head:6385" > /tmp/notice.log 2>&1 &\nwatcher=$!\n'
        if values.use_spot
        else "watcher=\n"
    )
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
            # The limit is that of one node (SkyPilot, docs/source/reference/yaml-spec.rst).
            "max_hourly_cost": round(values.max_price_per_hour / values.gpu.max_nodes, 2),
            **({"network_tier": "best"} if values.fast_network else {}),
            "job_recovery": {"strategy": "EAGER_NEXT_REGION", "max_restarts_on_errors": 2},
        },
        "envs": {"RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0", "NCCL_DEBUG": "WARN"},
        "secrets": {"RAY_AUTH_TOKEN": None},
        "setup": f"""\
set -euo pipefail
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1)
if [ "${{driver%%.*}}" -lt {OLDEST_DRIVER} ]; then
    echo "error: NVIDIA's driver is $driver, but CUDA 13 needs {OLDEST_DRIVER}; change fast_network or infra" >&2
    exit 1
fi
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
    ray start --address="$head:6385" {start} --block &
    ray_node=$!
    {watch.replace(chr(10), chr(10) + "    ").rstrip()}
    wait "$ray_node" || true
    kill $watcher || true
    exit 0
fi
ray start --head --node-ip-address="$head" --port=6385 --include-dashboard=false {start} --block &
ray_head=$!
trap 'kill "$ray_head" $watcher || true' EXIT
watcher=
until ray health-check --address="$head:6385"; do kill -0 "$ray_head"; sleep 5; done
{watch.rstrip()}
export RAY_ADDRESS="$head:6385"
{values.command}
""",
    }

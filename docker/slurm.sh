#!/usr/bin/env bash
# The study on an allocation of SLURM: a Ray cluster that begins and ends with it, a Ray node on each of its machines.
# From the project's folder, which all machines mount under the same path and which has .venv (`make setup`):
#
#   sbatch docker/slurm.sh                                              two machines with eight GPUs each, as below
#   sbatch --nodes=1 --gpus-per-node=1 --mem=64G docker/slurm.sh        options of sbatch come before those of this file
#   sbatch docker/slurm.sh make study                                   another command: one cell after the other
#
# The same line again continues where the last allocation ended. docs/cluster.md says more.
#SBATCH --job-name=mnvi
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --gpus-per-node=8
# A GPU's loader processes need eight cores: resources.cpus_per_worker: 8. Memory: 24 GB a GPU. Disk of a machine: ImageNet's
# shards take 34 GB, code that torch.compile writes and what Ray spills the rest.
#SBATCH --cpus-per-task=64
#SBATCH --mem=192G
#SBATCH --tmp=100G
#SBATCH --time=24:00:00
# Five minutes before the end of its time the study is told to stop, and writes its last checkpoints.
#SBATCH --signal=B:TERM@300
set -euo pipefail

cd "${SLURM_SUBMIT_DIR:?start this file with sbatch}"
export PATH="$PWD/.venv/bin:$PATH"
# In the environment, not among arguments, which other users of the machines see. srun hands it on.
RAY_AUTH_TOKEN=$(python -c 'import secrets; print(secrets.token_hex(32))')
export RAY_AUTH_TOKEN RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0
export RAY_raylet_start_wait_time_s=300 # Ray's 30 seconds are short if all machines load their packages from one share
export MNVI_STORAGE="${MNVI_STORAGE:-$PWD/work/storage}"
# On each machine's own disk; the folder is one that only this user may enter.
export MNVI_NODE_CACHE="${MNVI_NODE_CACHE:-/tmp/mnvi-$(id -u)}"
export MNVI_CLUSTER_WAIT="${MNVI_CLUSTER_WAIT:-600}" # seconds: machines join one after the other
# Other allocations on the same machines have other numbers; Ray gives 10002 to 19999 to its workers.
port=$((20000 + SLURM_JOB_ID % 1000 * 8))
dashboard=$((port + 1))

mapfile -t machines < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${machines[0]}
ip=$(srun --nodes=1 --ntasks=1 --nodelist="$head" hostname --ip-address | tr ' ' '\n' | grep --max-count=1 --extended-regexp '^[0-9.]+$')

# A Ray node occupies what SLURM has given to its task; Ray itself would count all of the machine's CPUs.
# shellcheck disable=SC2016 # the variables are those of the task
start='unset RAY_ADDRESS; exec ray start --block --num-cpus="${SLURM_CPUS_PER_TASK:-${SLURM_CPUS_ON_NODE:-1}}" \
  --num-gpus="${SLURM_GPUS_ON_NODE:-0}" --object-store-memory=2000000000 --disable-usage-stats'
start+=" --dashboard-agent-listen-port=$((port + 2)) --dashboard-agent-grpc-port=$((port + 3))"
start+=" --runtime-env-agent-port=$((port + 4)) --metrics-export-port=$((port + 5))"
steps=()
node() { # machines, options of srun and of ray start
  local count=$1 where=$2
  shift 2
  srun --nodes="$count" --ntasks="$count" --ntasks-per-node=1 --overlap "$where" bash -c "$start $*" &
  steps+=($!)
}
ended() {
  [ -z "${study:-}" ] || kill -TERM "$study" 2>/dev/null || true
  [ -z "${study:-}" ] || wait "$study" || true
  kill -TERM "${steps[@]}" 2>/dev/null || true
  wait
}
trap ended EXIT
trap 'exit 143' TERM INT

node 1 --nodelist="$head" --head --node-ip-address="$ip" --port="$port" \
  --dashboard-host=127.0.0.1 --dashboard-port="$dashboard" --ray-client-server-port="$((port + 6))" \
  --temp-dir="/tmp/ray-$SLURM_JOB_ID"
export RAY_ADDRESS="http://127.0.0.1:$dashboard" # this script runs on the first machine, which has the head
until ray job list --address="$RAY_ADDRESS" >/dev/null 2>&1; do
  kill -0 "${steps[0]}" 2>/dev/null || { echo "Ray's head did not start on $head" >&2; exit 1; }
  sleep 2
done
if ((${#machines[@]} > 1)); then
  node $((${#machines[@]} - 1)) --exclude="$head" --address="$ip:$port"
fi

if (($#)); then
  "$@" &
else
  bash -c 'dvc repro prepare && python -m pipeline.submission && make study' &
fi
study=$!
wait "$study"

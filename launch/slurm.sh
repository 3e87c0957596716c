#!/usr/bin/env bash
# Trains on the GPUs of a SLURM cluster:
#
#     sbatch launch/slurm.sh [MORE FLAGS OF train.py]
#
# Before the time limit the run saves and ends, and the job queues again; the
# same command then goes on. launch/README.md says how to stop and watch it.

# ---- Settings ----
# One process a GPU: on each node JAX gives process n the GPU n, so that all of
# the node's GPUs must be seen: no --gpus-per-task, no --gpu-bind.
#SBATCH --job-name=fusion_jax
# What most clusters ask for; one # less, and your names:
##SBATCH --partition=PARTITION
##SBATCH --account=ACCOUNT
##SBATCH --mem=0
#SBATCH --nodes=2
#SBATCH --gpus-per-node=4
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
# One log of all starts.
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
# SIGTERM to the processes, 120 to 180 seconds before the time limit.
#SBATCH --signal=TERM@120
#SBATCH --requeue

# A run that stops with fewer seconds left queues again: the seconds of
# --signal, 60 that SLURM may be early, and some.
late=200
# To queue again after every exit code 75, also when you stopped the run:
# late=999999999
# Python, the run directory and the cache are on a disk that all nodes see;
# sbatch is called in the repository. Prepare the corpus before, on one node:
#     .venv/bin/python -m fusion_jax prepare --config=wmt14_ende:base
export XDG_CACHE_HOME=$PWD/runs/cache
python=.venv/bin/python
train=(
  --config=configs/wmt14_ende.py:base
  --workdir=runs/wmt14_base
  # A multiple of all GPUs, times optimizer.accumulation.
  --config.data.batch.row_multiple=8
)
# ---- End of settings ----

set -euo pipefail

# Seconds until the time limit; nothing where there is no limit.
seconds_left() {
  local end
  end=$(SLURM_TIME_FORMAT=standard squeue --noheader --format=%e \
    --jobs="$SLURM_JOB_ID")
  if [[ $end == *T* ]]; then
    echo $(($(date --date="$end" +%s) - $(date +%s)))
  fi
}

# A process that fails ends the others and the job, with its exit code.
code=0
srun --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" --kill-on-bad-exit=1 --label \
  "$python" train.py "${train[@]}" "$@" || code=$?

# 75: it was told to stop before its last step, and has saved.
if ((code == 75)); then
  left=$(seconds_left)
  if [[ -n $left ]] && ((left < late)); then
    scontrol requeue "$SLURM_JOB_ID"
  fi
fi
exit "$code"

#!/usr/bin/env bash
# Shares the runs of a study among the jobs of a SLURM array, one GPU each:
#
#     sbatch launch/study.sh
#
# Each job does its part. Before its time limit its run saves and the job queues
# again; the same command does what is left, and no run twice.

# ---- Settings ----
#SBATCH --job-name=study
#SBATCH --array=1-8
# What most clusters ask for; one # less, and your names:
##SBATCH --partition=PARTITION
##SBATCH --account=ACCOUNT
##SBATCH --mem=32G
#SBATCH --gpus=1
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --output=%x-%A-%a.log
#SBATCH --open-mode=append
# SIGTERM to the command, 120 to 180 seconds before the time limit.
#SBATCH --signal=B:TERM@120
#SBATCH --requeue

# On a disk that all nodes see; sbatch is called in the repository.
export XDG_CACHE_HOME=$PWD/runs/cache
fusion_jax=.venv/bin/fusion-jax
study=studies/multi30k.toml
workdir=runs/multi30k
# ---- End of settings ----

set -euo pipefail

"$fusion_jax" study "$study" --workdir="$workdir" \
  --only="$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT" &
pid=$!
trap 'kill -TERM "$pid"' TERM

# The signal ends the first wait, the second has the exit code.
code=0
wait "$pid" || code=$?
if kill -0 "$pid" 2>/dev/null; then
  code=0
  wait "$pid" || code=$?
fi

# 75: it was told to stop, and has saved.
if ((code == 75)); then
  scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
fi
exit "$code"

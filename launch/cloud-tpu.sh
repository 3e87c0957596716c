#!/usr/bin/env bash
# Trains on a Cloud TPU slice, without Kubernetes:
#
#     launch/cloud-tpu.sh create    # asks for the slice; it may wait in a queue
#     launch/cloud-tpu.sh state     # ACTIVE: it is there
#     launch/cloud-tpu.sh setup     # this commit, Python and JAX on all workers
#     launch/cloud-tpu.sh start     # starts, or goes on with, the run
#     launch/cloud-tpu.sh watch     # its log; Ctrl-C stops the watching only
#     launch/cloud-tpu.sh stop      # saves and ends the run
#     launch/cloud-tpu.sh delete    # gives the slice back
#
# Prepare a large corpus first, on one machine with the share:
#
#     python -m fusion_jax prepare --config=... --config.data.prepared=...
#
# Spot machines that were taken away: delete, create, setup and start again. The
# run resumes.

# ---- Settings ----
name=fusion-jax
place=(--project=PROJECT --zone=us-west4-a)
accelerator=v5litepod-16
runtime=v2-alpha-tpuv5-lite
# More flags of `queued-resources create`, --spot for example.
request=()
# An NFS share (Filestore) in the network of the slice, for the run directory
# and the prepared corpus: all workers read and write them.
share=10.0.0.2:/runs
train=(
  --config=configs/wmt14_ende.py:base
  --workdir=/mnt/runs/wmt14_base
  --config.data.prepared=/mnt/runs/prepared
  # A multiple of all chips, times optimizer.accumulation.
  --config.data.batch.row_multiple=16
  --config.data.batch.length_multiple=8
)
# ---- End of settings ----

set -euo pipefail
cd "$(dirname "$0")/.."

tpus() { gcloud compute tpus "$@" "${place[@]}"; }

# on WORKER COMMAND: runs it there, in the home directory.
on() { tpus tpu-vm ssh "$name" --worker="$1" --command="$2"; }

create() {
  tpus queued-resources create "$name" --node-id="$name" \
    --accelerator-type="$accelerator" --runtime-version="$runtime" \
    ${request[@]+"${request[@]}"}
}

state() {
  tpus queued-resources describe "$name" --format='value(state.state)'
}

# The runtime's own Python may be older than 3.11: uv brings one.
setup() {
  local archive
  if [[ -n $(git status --porcelain --untracked-files=no) ]]; then
    echo 'warning: uncommitted changes are not sent' >&2
  fi
  archive=$(mktemp)
  git archive --format=tar --output="$archive" HEAD
  tpus tpu-vm scp "$archive" "$name:fusion_jax.tar" --worker=all
  rm "$archive"
  on all "set -eu
    mkdir -p fusion_jax && tar -xf fusion_jax.tar -C fusion_jax
    python3 -m pip install --quiet --user uv
    cd fusion_jax
    python3 -m uv venv --quiet --allow-existing --python 3.12 .venv
    python3 -m uv pip install --quiet -r requirements.txt 'jax[tpu]'
    # Updates hold the lock of apt for some minutes after a start.
    sudo apt-get -o DPkg::Lock::Timeout=600 install --quiet --yes nfs-common
    sudo mkdir -p /mnt/runs
    grep --quiet ' /mnt/runs ' /etc/fstab ||
      echo '$share /mnt/runs nfs defaults,_netdev 0 0' |
      sudo tee --append /etc/fstab >/dev/null
    mountpoint --quiet /mnt/runs || sudo mount /mnt/runs
    sudo chmod 777 /mnt/runs"
}

# --distributed: on these machines nothing in the environment says that there
# are several; JAX asks the metadata server.
start() {
  local flags
  flags=$(printf ' %q' "${train[@]}")
  on all "set -eu
    cd fusion_jax
    if kill -0 \$(cat train.pid 2>/dev/null) 2>/dev/null; then
      echo 'error: the run is there already; stop it first' >&2
      exit 2
    fi
    export XDG_CACHE_HOME=/mnt/runs/cache
    nohup .venv/bin/python train.py --distributed$flags \
      >>train.log 2>&1 </dev/null & echo \$! >train.pid"
}

watch() { on 0 'tail -n 30 -F fusion_jax/train.log'; }

# SIGTERM to one process stops all of them after the same step.
stop() { on 0 "kill -TERM \$(cat fusion_jax/train.pid)"; }

delete() { tpus queued-resources delete "$name" --force; }

case ${1-} in
  create | state | setup | start | watch | stop | delete) "$1" ;;
  *)
    echo "error: $0 create|state|setup|start|watch|stop|delete, got '${1-}'" >&2
    exit 2
    ;;
esac

#!/bin/sh
# Makes .venv-peers: PyTorch and JoeyNMT, apart from what fusion_jax needs.
# PyTorch comes first and alone: give PIP_EXTRA_INDEX_URL or the like for a
# build without CUDA, https://download.pytorch.org/whl/cpu for example.
set -eu
cd "$(dirname "$0")/../.."
"${PYTHON:-python3}" -m venv .venv-peers
echo '*' > .venv-peers/.gitignore
.venv-peers/bin/pip install torch==2.13.0
.venv-peers/bin/pip install -r benchmarks/peers/requirements.txt
.venv-peers/bin/pip install --no-deps joeynmt==2.3.0
.venv-peers/bin/python - <<'END'
import joeynmt
import joeynmt.training
import torch

print('joeynmt', joeynmt.__version__, 'torch', torch.__version__)
END

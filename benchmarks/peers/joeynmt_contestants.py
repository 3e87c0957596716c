r"""JoeyNMT as a contestant: its own training step and search.

    echo 5 | .venv-peers/bin/python -m benchmarks.peers.joeynmt_contestants \
        step --size=small

The step is that of its TrainManager, with its model, loss, batch and optimiser.
Its layers have dropout also on the attention weights and the hidden layer of
the filter. The search has random parameters of its own.
"""

import argparse
import sys
from types import SimpleNamespace
from typing import Any

import joeynmt
import torch
from joeynmt.batch import Batch
from joeynmt.builders import build_optimizer
from joeynmt.model import build_model
from joeynmt.search import search
from joeynmt.vocabulary import Vocabulary

from benchmarks.serving import CORES, add_size, add_task, serve, task_of
from benchmarks.sizes import LENGTH, SIZES, Size, Task

_UNKNOWN, _PADDING, _START, _END = range(4)
_BATCHES = 4


def vocabulary(size: Size) -> Vocabulary:
  symbols = SimpleNamespace(
    unk_token='<unk>', pad_token='<pad>', bos_token='<s>', eos_token='</s>',
    unk_id=_UNKNOWN, pad_id=_PADDING, bos_id=_START, eos_id=_END,
    sep_token=None, sep_id=None, lang_tags=[],
  )  # fmt: skip
  pieces = [f'piece{index}' for index in range(size.vocabulary - 4)]
  return Vocabulary(pieces, symbols)


def model_config(size: Size) -> dict[str, Any]:
  """As in the `model` section of JoeyNMT's YAML files."""
  stack = {
    'type': 'transformer',
    'num_layers': size.layers,
    'num_heads': size.heads,
    'embeddings': {
      'embedding_dim': size.width,
      'scale': True,
      'dropout': size.dropout,
    },
    'hidden_size': size.width,
    'ff_size': size.filter,
    'dropout': size.dropout,
    'layer_norm': 'pre',
  }
  return {
    'initializer': 'xavier_uniform',
    'embed_initializer': 'xavier_uniform',
    'tied_embeddings': True,
    'tied_softmax': True,
    'encoder': stack,
    'decoder': stack,
  }


def make_batch(
  source: torch.Tensor, target: torch.Tensor | None = None
) -> Batch:
  """Rows without padding; without a target they are to be translated."""
  rows, length = source.shape
  return Batch(
    src=source,
    src_length=torch.full((rows,), length),
    src_prompt_mask=None,
    trg=target,
    trg_prompt_mask=None,
    indices=torch.arange(rows),
    device=torch.device('cpu'),
    pad_index=_PADDING,
    eos_index=_END,
    is_train=target is not None,
  )


class JoeyNmtStep:
  """Forward, loss, backward, Adam."""

  def __init__(self, size: Size):
    torch.set_num_threads(CORES)
    torch.manual_seed(0)
    pieces = vocabulary(size)
    self._model = build_model(model_config(size), pieces, pieces)
    self._model.loss_function = ('crossentropy', size.label_smoothing)
    self._model.train()
    self._optimizer = build_optimizer(
      {'optimizer': 'adam', 'learning_rate': 1e-4, 'adam_betas': [0.9, 0.98]},
      self._model.parameters(),
    )
    self._tokens = [self._random_tokens(size) for _ in range(_BATCHES)]
    self._steps, self._loss = 0, 0.0

  def _random_tokens(self, size: Size) -> tuple[torch.Tensor, torch.Tensor]:
    """Both sides of a batch; the target has a start symbol more."""
    shape = (2, size.rows, size.length)
    source, target = torch.randint(_END + 1, size.vocabulary, shape)
    source[:, -1] = target[:, -1] = _END
    return source, torch.nn.functional.pad(target, (1, 0), value=_START)

  def step(self) -> None:
    """One update, as in TrainManager._train_step."""
    batch = make_batch(*self._tokens[self._steps % _BATCHES])
    batch.sort_by_src_length()
    loss, _, _, correct = self._model(return_type='loss', **vars(batch))
    loss = batch.normalize(loss, normalization='tokens')
    loss.backward()
    self._loss, _ = loss.item(), correct.item()
    self._optimizer.step()
    self._model.zero_grad()
    self._steps += 1

  def report(self) -> dict[str, Any]:
    return _about(self._model) | {'loss': self._loss}


class JoeyNmtSearch:
  """Encoder and search of all sentences, from ids to ids."""

  def __init__(self, size: Size, task: Task):
    torch.set_num_threads(CORES)
    torch.manual_seed(0)
    pieces = vocabulary(size)
    self._model = build_model(model_config(size), pieces, pieces).eval()
    self._beam = task.beam
    self._batches = [
      make_batch(torch.tensor(ids)) for ids in task.batches(size)
    ]

  def step(self) -> None:
    """Translates everything once, as its `predict` does."""
    for batch in self._batches:
      translated, _, _ = search(
        self._model,
        batch,
        max_output_length=LENGTH,
        beam_size=self._beam,
        beam_alpha=0.6,
        min_output_length=LENGTH,
      )
      if translated.shape != (batch.src.shape[0], LENGTH):
        raise RuntimeError('a translation has another length')

  def report(self) -> dict[str, Any]:
    return _about(self._model)


def _about(model: torch.nn.Module) -> dict[str, Any]:
  return {
    'version': f'joeynmt {joeynmt.__version__}, torch {torch.__version__}',
    'parameters': sum(p.numel() for p in model.parameters()),
  }


def main() -> None:
  parser = argparse.ArgumentParser()
  programs = parser.add_subparsers(dest='program', required=True)
  add_size(programs.add_parser('step'))
  add_task(programs.add_parser('search'))
  arguments = parser.parse_args()
  size = SIZES[arguments.size]
  if arguments.program == 'step':
    serve(lambda: JoeyNmtStep(size))
  else:
    task = task_of(arguments)
    serve(lambda: JoeyNmtSearch(size, task), warm_up_steps=1)


if __name__ == '__main__':
  sys.exit(main())

r"""A plain PyTorch Transformer as a contestant: eager, or under torch.compile.

    echo 5 | python -m benchmarks.peers.pytorch_step --size=base --compile \
        --device=cuda --dtype=bfloat16 --rows=64 --length=128 --updates=4

Written for speed: queries, keys and values from one product, PyTorch's fused
attention and fused Adam, and no masks of padding, as the batches have none.
"""

import argparse
import sys
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.serving import CORES, add_size, serve
from benchmarks.sizes import SIZES, SPECIAL_SYMBOLS, START, Size

_BATCHES = 4


class Attention(nn.Module):
  """Multi-head attention; of x to itself, or to the memory."""

  def __init__(self, size: Size, to_memory: bool):
    super().__init__()
    self.heads, self.to_memory = size.heads, to_memory
    if to_memory:
      self.query = nn.Linear(size.width, size.width)
      self.key_value = nn.Linear(size.width, 2 * size.width)
    else:
      self.query_key_value = nn.Linear(size.width, 3 * size.width)
    self.out = nn.Linear(size.width, size.width)

  def forward(self, x: Tensor, memory: Tensor | None, causal: bool) -> Tensor:
    if self.to_memory:
      parts = (self.query(x), *self.key_value(memory).chunk(2, -1))
    else:
      parts = self.query_key_value(x).chunk(3, -1)
    query, key, value = (
      part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts
    )
    y = F.scaled_dot_product_attention(query, key, value, is_causal=causal)
    return self.out(y.transpose(1, 2).flatten(2))


class Layer(nn.Module):
  """Pre-norm; of the decoder if `cross`."""

  def __init__(self, size: Size, cross: bool):
    super().__init__()
    self.causal = cross
    self.attention = nn.ModuleList(
      Attention(size, to_memory) for to_memory in (False, True)[: 1 + cross]
    )
    self.hidden = nn.Linear(size.width, size.filter)
    self.out = nn.Linear(size.filter, size.width)
    self.norms = nn.ModuleList(
      nn.LayerNorm(size.width, eps=1e-6) for _ in range(2 + cross)
    )
    self.dropout = nn.Dropout(size.dropout)

  def forward(self, x: Tensor, memory: Tensor | None) -> Tensor:
    for attention, norm in zip(self.attention, self.norms, strict=False):
      causal = self.causal and not attention.to_memory
      x = x + self.dropout(attention(norm(x), memory, causal))
    hidden = F.relu(self.hidden(self.norms[-1](x)))
    return x + self.dropout(self.out(hidden))


class Transformer(nn.Module):
  """Encoder, decoder, one table; returns the smoothed loss."""

  def __init__(self, size: Size):
    super().__init__()
    self.size = size
    self.table = nn.Parameter(
      torch.randn(size.vocabulary, size.width) * size.width**-0.5
    )
    self.encoder = nn.ModuleList(
      Layer(size, cross=False) for _ in range(size.layers)
    )
    self.decoder = nn.ModuleList(
      Layer(size, cross=True) for _ in range(size.layers)
    )
    self.encoder_norm = nn.LayerNorm(size.width, eps=1e-6)
    self.decoder_norm = nn.LayerNorm(size.width, eps=1e-6)
    self.dropout = nn.Dropout(size.dropout)
    self.register_buffer('positions', sinusoids(size))

  def embed(self, tokens: Tensor) -> Tensor:
    x = F.embedding(tokens, self.table) * self.size.width**0.5
    return self.dropout(x + self.positions)

  def forward(self, source: Tensor, target: Tensor) -> Tensor:
    memory = self.embed(source)
    for layer in self.encoder:
      memory = layer(memory, None)
    memory = self.encoder_norm(memory)
    x = self.embed(F.pad(target[:, :-1], (1, 0), value=START))
    for layer in self.decoder:
      x = layer(x, memory)
    logits = F.linear(self.decoder_norm(x), self.table)
    return F.cross_entropy(
      logits.flatten(0, 1),
      target.flatten(),
      label_smoothing=self.size.label_smoothing,
    )


def sinusoids(size: Size) -> Tensor:
  exponent = torch.arange(0, size.width, 2) / size.width
  angle = torch.arange(size.length)[:, None] * 10_000**-exponent
  return torch.stack([angle.sin(), angle.cos()], -1).flatten(1)


class PyTorchStep:
  """Forward, loss, backward, Adam; with bfloat16 under autocast."""

  def __init__(self, size: Size, arguments: argparse.Namespace):
    torch.set_num_threads(CORES)
    torch.manual_seed(0)
    self._device, self._updates = arguments.device, arguments.updates
    self._model = Transformer(size).to(self._device)
    compiled = torch.compile(self._model) if arguments.compile else self._model
    self._loss_of = torch.autocast(
      self._device, torch.bfloat16, enabled=arguments.dtype == 'bfloat16'
    )(compiled)
    self._optimizer = torch.optim.Adam(
      self._model.parameters(), 1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True
    )
    shape = (_BATCHES, 2, size.rows, size.length)
    batches = torch.randint(SPECIAL_SYMBOLS, size.vocabulary, shape)
    self._batches = batches.to(self._device)
    self._steps, self._loss = 0, 0.0

  def step(self) -> None:
    """Some updates; the host waits for the last one only."""
    for _ in range(self._updates):
      loss = self._loss_of(*self._batches[self._steps % _BATCHES])
      loss.backward()
      self._optimizer.step()
      self._optimizer.zero_grad(set_to_none=True)
      self._steps += 1
    self._loss = loss.item()
    if self._device == 'cuda':
      torch.cuda.synchronize()

  def report(self) -> dict[str, Any]:
    facts = {
      'version': f'torch {torch.__version__}',
      'parameters': sum(p.numel() for p in self._model.parameters()),
      'loss': self._loss,
    }
    if self._device == 'cuda':
      facts['peak_device_mb'] = torch.cuda.max_memory_allocated() / 2**20
      torch.cuda.empty_cache()
    return facts


def main() -> None:
  parser = argparse.ArgumentParser()
  add_size(parser)
  add = parser.add_argument
  add('--compile', action='store_true')
  add('--device', default='cpu', help='or cuda')
  add('--dtype', choices=('float32', 'bfloat16'), default='float32')
  add('--rows', type=int, help='default: as --size')
  add('--length', type=int, help='default: as --size')
  add('--updates', type=int, default=1)
  arguments = parser.parse_args()
  size = SIZES[arguments.size]
  rows, length = arguments.rows or size.rows, arguments.length or size.length
  size = size._replace(rows=rows, length=length)
  serve(lambda: PyTorchStep(size, arguments))


if __name__ == '__main__':
  sys.exit(main())

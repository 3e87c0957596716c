"""Runs of known parameters and a text of a few lines, to be looked at."""

import json

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib import image

from fusion_jax.analysis import TextChoice
from fusion_jax.analysis.run_with_text import RunWithText
from fusion_jax.analysis.views import look_at
from fusion_jax.config import (
  DataConfig,
  DecodingConfig,
  ExperimentConfig,
  ModelConfig,
  TokenizerConfig,
)
from fusion_jax.data.tokenizer import Tokenizer, train
from fusion_jax.models.transformer import initial_parameters
from fusion_jax.runs.loading import TrainedModel, make_model

SOURCES = [
  'the cat sat on the mat',
  'a dog',
  'the dog and the cat and the dog sat on a mat in the house',
  'cats',
  'a house on the mat and the dog',
  'the dog sat',
]
TARGETS = SOURCES[::-1]


def make_run(parameters=None, scale=0.5, tokenizer=None, **model):
  """A run of a tiny model.

  Args:
    parameters: by path, 'encoder/read_out/weights', in place of random ones:
      arrays, or numbers that fill them; every path that ends so.
    scale: deviation of the others.
    tokenizer: in place of one of the text here.
    model: fields of its config.
  """
  sizes = {'width': 16, 'filter': 24, 'encoder_layers': 2, 'decoder_layers': 2}
  config = ExperimentConfig(
    data=DataConfig(target_language='de'),
    model=ModelConfig(heads=2, **sizes | model),
    decoding=DecodingConfig(
      beam_size=1, batch_tokens=256, max_source_length=32, max_length_extra=3
    ),
  )
  tokenizer = tokenizer or tokenizer_of(SOURCES * 3, 40)
  model = make_model(config, tokenizer, tokenizer)
  random = _filled(model, parameters or {}, np.random.default_rng(0), scale)
  return TrainedModel(config, model, random, 7, tokenizer, tokenizer)


def tokenizer_of(lines, size, **options):
  config = TokenizerConfig(algorithm='bpe', vocabulary_size=size, **options)
  return Tokenizer(train(lines, config))


def _filled(model, given, generator, scale):
  shapes = jax.eval_shape(lambda: initial_parameters(model, 0))
  used = set()

  def fill(path, leaf):
    name = '/'.join(part.key for part in path)
    for end, value in given.items():
      if f'/{name}'.endswith(f'/{end}'):
        used.add(end)
        return jnp.broadcast_to(jnp.asarray(value, leaf.dtype), leaf.shape)
    drawn = scale * generator.normal(size=leaf.shape)
    return jnp.asarray(drawn, leaf.dtype)

  parameters = jax.tree.map_with_path(fill, shapes)
  assert used == set(given), f'no such parameters: {set(given) - used}'
  return parameters


def fused_run(run, folder, sources=SOURCES, targets=TARGETS, lines=0):
  """The run with a text of its own."""
  folder.mkdir(parents=True, exist_ok=True)
  files = folder / 'source.txt', folder / 'target.txt'
  for file, text in zip(files, (sources, targets), strict=True):
    file.write_text(''.join(f'{line}\n' for line in text))
  return RunWithText(folder, run, TextChoice(*map(str, files), lines))


def numbers_of(view, analysed):
  """What a view finds, as its file has it."""
  found = look_at(view, analysed, analysed.workdir / 'analysis')['numbers']
  return json.loads(json.dumps(found))


def all_at_once(analysed):
  """One padded batch of the whole text, and the lengths of its rows.

  Returns:
    source, source_lengths, target, target_lengths.
  """
  arrays = []
  for side in ('source', 'target'):
    rows = [getattr(pair, side) for pair in analysed.pairs]
    lengths = np.array([len(row) for row in rows])
    padded = np.zeros((len(rows), lengths.max()), np.int32)
    for row, ids in zip(padded, rows, strict=True):
      row[: len(ids)] = ids
    arrays += [padded, lengths]
  return arrays


def shown(analysed):
  """What the modules hand out on that batch, as numpy."""
  model = analysed.run.model

  @jax.jit
  def one_pass(parameters, source, sizes, target, target_sizes):
    _, kept = model.apply(
      {'params': parameters},
      source,
      sizes,
      target,
      target_lengths=target_sizes,
      mutable=['views'],
    )
    return kept['views']

  batch = all_at_once(analysed)
  return jax.device_get(one_pass(analysed.run.parameters, *batch))


def rows_of(values, lengths):
  """The positions [tokens, ...] of an array [B, T, ...] that are tokens."""
  return np.concatenate(
    [row[:size] for row, size in zip(values, lengths, strict=True)]
  )


def assert_not_blank(path):
  """A PNG has words and drawings on white, and lies beside its SVG."""
  pixels = image.imread(path)[..., :3].mean(-1)
  height, width = pixels.shape
  assert min(height, width) > 100, (height, width)
  inked = pixels < 0.5
  # The words of the axes alone are more than this.
  assert inked.mean() > 0.002, f'{path}: {inked.mean():.5f} of it is dark'
  assert (pixels > 0.98).mean() > 0.05, f'{path}: has no background'
  # Drawn all over: in each half, from left to right and from top to bottom.
  for half in (
    *np.array_split(inked, 2, axis=0),
    *np.array_split(inked, 2, axis=1),
  ):
    assert half.any(), f'{path}: a half of it is empty'
  assert '<text' in path.with_suffix('.svg').read_text(encoding='utf-8')

"""Runs for tests: a model that copies its source, and random Transformers."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from fusion_jax.config import (
  DataConfig,
  ExperimentConfig,
  ModelConfig,
  TokenizerConfig,
)
from fusion_jax.config.fusion import SideConfig
from fusion_jax.data.batching import Batch
from fusion_jax.data.tokenizer import Tokenizer, train
from fusion_jax.models.stack import StackOutput
from fusion_jax.models.transformer import Transformer
from fusion_jax.runs.loading import TrainedModel

LINES = [
  'the cat sat on the mat',
  '',
  'a dog',
  'the dog and the cat and the dog and the cat sat on a mat in the house',
  '  \t ',
  'cats',
  'a house on the mat. the dog sat in the house! and the cat? on the dog.',
  'the dog sat',
]
# The (rows, source length) of every batch that was compiled.
traces = []


class Copying(Transformer):
  """Knows for certain that a sentence translates to itself."""

  def setup(self):
    pass

  def encode(self, source, source_lengths):
    traces.append(source.shape)
    return StackOutput(source[:, :, None].astype(jnp.float32), ())

  def start_decoding(self, encoded, source_lengths, beam, max_length):
    memory = encoded.features
    cache = jnp.zeros((memory.shape[0], beam, 1))
    return cache, (memory[:, :, 0].astype(jnp.int32), source_lengths)

  def decode_step(self, tokens, position, rows, cache, memory):
    source, lengths = memory
    here = jnp.minimum(position, lengths - 1)
    wanted = jnp.take_along_axis(source, here[:, None], axis=1)
    logits = 20 * jax.nn.one_hot(wanted, self.target_vocabulary)
    return jnp.broadcast_to(logits, (*tokens.shape, logits.shape[-1])), cache

  @nn.nowrap
  def take_sentences(self, cache, memory, sentences):
    return jax.tree.map(lambda leaf: leaf[sentences], (cache, memory))


class Endless(Copying):
  """Repeats the first subword of the source and never ends by itself."""

  def decode_step(self, tokens, position, rows, cache, memory):
    return super().decode_step(tokens, jnp.int32(0), rows, cache, memory)


def copies(rows, seed, longest, ids, end):
  """Random sentences of 2 to `longest` ids and an end symbol, to be copied."""
  rng = np.random.default_rng(seed)
  lengths = rng.integers(2, longest + 1, rows, dtype=np.int32)
  drawn = rng.integers(ids.start, ids.stop, (rows, longest + 1), dtype=np.int32)
  drawn[np.arange(rows), lengths] = end
  drawn[np.arange(longest + 1) > lengths[:, None]] = 0
  return Batch(drawn, drawn, lengths + 1, lengths + 1)


def make_tokenizer():
  config = TokenizerConfig(algorithm='bpe', vocabulary_size=40)
  return Tokenizer(train(LINES * 3, config))


def make_run(tokenizer, kind=Copying, parameters=None, language='de'):
  model = ModelConfig(
    initialization='glorot',
    width=16,
    filter=32,
    heads=2,
    encoder_layers=1,
    decoder_layers=1,
  )
  vocabulary = tokenizer.vocabulary
  return TrainedModel(
    ExperimentConfig(data=DataConfig(target_language=language), model=model),
    kind(model, vocabulary.size, vocabulary.size, vocabulary.start),
    parameters or {},
    1,
    tokenizer,
    tokenizer,
  )


def with_learned_positions(run, count):
  """The run as one whose model has learned so many positions, in its config."""
  model = dataclasses.replace(
    run.config.model, positions='learned', max_positions=count
  )
  config = dataclasses.replace(run.config, model=model)
  return dataclasses.replace(run, config=config)


def random_run(tokenizer, seed, decoder=None, layers=1):
  """A Transformer; large weights make large differences of hypotheses."""
  run = make_run(tokenizer, Transformer)
  config = dataclasses.replace(
    run.config.model, decoder=decoder or SideConfig(), decoder_layers=layers
  )
  model = run.model.clone(config=config)
  one = jnp.ones((1, 4), jnp.int32)
  init = jax.jit(model.init)
  parameters = init(jax.random.key(seed), one, jnp.full(1, 4, jnp.int32), one)
  return dataclasses.replace(
    run,
    config=dataclasses.replace(run.config, model=config),
    model=model,
    parameters=jax.tree.map(lambda x: 3 * x, nn.unbox(parameters['params'])),
  )

"""Exported models give the log-probabilities and translations of their runs."""

import dataclasses

import ctranslate2
import jax
import numpy as np
import pytest
from copying import copies, make_tokenizer

from fusion_jax.config import (
  ExperimentConfig,
  ModelConfig,
  OptimizerConfig,
  TrainingConfig,
)
from fusion_jax.config.fusion import SideConfig
from fusion_jax.decoding.model_step import (
  SearchRows,
  SearchSettings,
  Source,
  search_batch,
)
from fusion_jax.errors import InputError
from fusion_jax.models.transformer import initial_parameters
from fusion_jax.runs.loading import TrainedModel, make_model
from fusion_jax.search.beam import LengthPenalty
from fusion_jax.testing import assert_close
from fusion_jax.tools.export import ctranslate2 as exporting
from fusion_jax.tools.export.ctranslate2 import exported_scores, own_scores
from fusion_jax.training.build import initial_state
from fusion_jax.training.optimizer import make_optimizer
from fusion_jax.training.step import make_train_step, zero_totals

# Random sentences have at most so many tokens before the end symbol.
_LONGEST = 8
_MAX_LENGTH = 24
_SENTENCES = 128
_PRE = ModelConfig(
  width=32,
  filter=64,
  heads=2,
  encoder_layers=2,
  decoder_layers=2,
  norm='pre',
  dropout=0.0,
  embedding_dropout=0.0,
  scan_layers=True,
)
_POST = dataclasses.replace(
  _PRE,
  norm='post',
  decoder_layers=1,
  positions='learned',
  max_positions=256,
  tied_embeddings='none',
  attention_bias=False,
  output_bias=True,
  scan_layers=False,
)
# Not trained. All that the two above have not: other ties, no biases in the
# feed-forward layers, another epsilon of the norms.
_RANDOM = {
  'pre': dataclasses.replace(
    _PRE,
    scan_layers=False,
    tied_embeddings='target_output',
    feedforward_bias=False,
    norm_epsilon=0.1,
  ),
  'post': dataclasses.replace(
    _POST,
    decoder_layers=3,
    attention_bias=True,
    activation='silu',
    positions='marian',
    scale_embedding=False,
    tied_embeddings='source_target',
    scan_layers=True,
    compute_dtype='bfloat16',
    initialization='fan_in',
  ),
}


@pytest.fixture(scope='module')
def tokenizer():
  return make_tokenizer()


def _copies(tokenizer, rows, seed):
  vocabulary = tokenizer.vocabulary
  ids = range(4, vocabulary.size)
  return copies(rows, seed, _LONGEST, ids, vocabulary.end)


def _trained(tokenizer, model_config):
  """Knows how to copy, but not too well: its hypotheses differ in length."""
  config = ExperimentConfig(
    model=model_config,
    optimizer=OptimizerConfig(
      schedule='inverse_sqrt', peak=5e-3, warmup_steps=50
    ),
    training=TrainingConfig(label_smoothing=0.1),
  )
  model = make_model(config, tokenizer, tokenizer)
  optimizer = make_optimizer(config.optimizer, model_config.width)
  step = make_train_step(model, optimizer, config)
  state, totals = initial_state(model, optimizer, 0), zero_totals(2)
  for seed in range(400):
    state, totals = step(state, totals, _copies(tokenizer, 32, seed))
  return TrainedModel(
    config, model, state.parameters, 400, tokenizer, tokenizer
  )


@pytest.fixture(scope='module', params=['pre', 'post'])
def exported(request, tokenizer, tmp_path_factory):
  """A trained run and its exported folder."""
  run = _trained(tokenizer, {'pre': _PRE, 'post': _POST}[request.param])
  folder = tmp_path_factory.mktemp('models') / request.param
  exporting.export(run, folder)
  return run, folder


def _random_run(tokenizer, model_config):
  config = ExperimentConfig(model=model_config)
  model = make_model(config, tokenizer, tokenizer)
  parameters = jax.jit(lambda: initial_parameters(model, 3))()
  rng = np.random.default_rng(3)
  # No bias and no norm that does nothing.
  parameters = jax.tree.map(
    lambda x: x + 0.1 * rng.standard_normal(x.shape, np.float32), parameters
  )
  return TrainedModel(config, model, parameters, 0, tokenizer, tokenizer)


def _translator(folder):
  # Threads that spin on shared cores would make it slow.
  return ctranslate2.Translator(str(folder), intra_threads=1)


def _pairs(batch):
  sides = (
    (batch.source, batch.source_lengths),
    (batch.target, batch.target_lengths),
  )
  sources, targets = (
    [row[:length].tolist() for row, length in zip(ids, lengths, strict=True)]
    for ids, lengths in sides
  )
  return list(zip(sources, targets[1:] + targets[:1], strict=True))


def _assert_same_scores(run, folder):
  pairs = _pairs(_copies(run.source_tokenizer, 40, seed=20_000))
  ours, theirs = own_scores(run, pairs), exported_scores(run, folder, pairs)
  for pair, own, other in zip(pairs, ours, theirs, strict=True):
    assert len(own) == len(other) == len(pair[1])
    assert_close(own, other)
  assert np.concatenate(ours).std() > 0.5


@pytest.mark.extended
def test_scores_are_those_of_the_run(exported):
  _assert_same_scores(*exported)


@pytest.mark.extended
@pytest.mark.parametrize('name', _RANDOM)
def test_scores_of_all_other_details(tokenizer, tmp_path, name):
  run = _random_run(tokenizer, _RANDOM[name])
  exporting.export(run, tmp_path / 'model')
  model = run.model.clone(
    config=dataclasses.replace(run.model.config, compute_dtype='float32')
  )
  _assert_same_scores(dataclasses.replace(run, model=model), tmp_path / 'model')


@pytest.mark.extended
@pytest.mark.parametrize('name', _RANDOM)
def test_forbidden_pieces_are_never_made(tokenizer, tmp_path, name):
  run = _random_run(tokenizer, _RANDOM[name])
  pieces = tokenizer.pieces()

  def made(run, folder):
    exporting.export(run, folder)
    found = _translator(folder).translate_batch(
      [pieces[4:9], pieces[6:8]],
      max_decoding_length=12,
      beam_size=1,
      min_decoding_length=0,
    )
    return [piece for each in found for piece in each.hypotheses[0]]

  often = made(run, tmp_path / 'plain')[0]
  forbidden = dataclasses.replace(run.config.decoding, forbidden=(often,))
  config = dataclasses.replace(run.config, decoding=forbidden)
  run = dataclasses.replace(run, config=config)
  assert often not in made(run, tmp_path / 'without')


@pytest.mark.extended
@pytest.mark.parametrize('beam', [1, 4])
def test_translations_are_those_of_the_run(exported, tokenizer, beam):
  """The best hypothesis, where the two searches are the same.

  Both rank by the sum of log-probabilities divided by the length with its end
  symbol. CTranslate2 lets hypotheses end that are among the best `beam`
  extensions, ours among the best 2 `beam`, and both stop after patience *
  beam of them; ours also where nothing better can come. With a patience of 2
  the best one is found by both. min_decoding_length=0: the default, 1,
  removes the end symbol from the first softmax.
  """
  run, folder = exported
  batch = _copies(tokenizer, _SENTENCES, seed=10_000)
  found = search_batch(
    (run.parameters,),
    SearchRows(
      (Source(batch.source, batch.source_lengths),),
      np.full(_SENTENCES, _MAX_LENGTH, np.int32),
      np.arange(_SENTENCES, dtype=np.int32),
    ),
    models=(run.model,),
    settings=SearchSettings(
      *(beam, 1, tokenizer.vocabulary.end, LengthPenalty('length', 1.0)),
      patience=2.0,
    ),
    max_length=_MAX_LENGTH,
  )
  pieces = tokenizer.pieces()
  theirs = _translator(folder).translate_batch(
    [[pieces[token] for token in pair[0][:-1]] for pair in _pairs(batch)],
    beam_size=beam,
    patience=2,
    length_penalty=1,
    min_decoding_length=0,
    max_decoding_length=_MAX_LENGTH,
    return_scores=True,
  )
  equal = []
  tokens, lengths, scores = jax.device_get(
    (found.tokens[:, 0], found.lengths[:, 0], found.scores[:, 0])
  )
  for row, other in enumerate(theirs):
    own = [pieces[token] for token in tokens[row, : lengths[row] - 1]]
    equal.append(own == other.hypotheses[0])
    if equal[-1]:
      assert_close(other.scores[0], scores[row])
  assert np.mean(equal) >= 0.99
  # Hypotheses that end by themselves, and not all alike.
  assert lengths.max() < _MAX_LENGTH
  assert len(set(lengths.tolist())) > 3


@pytest.mark.parametrize(
  ('side', 'field', 'value'),
  [
    ('encoder', 'fusion', 'linear'),
    ('decoder', 'fusion', 'dlcl'),
    ('decoder', 'attention', 'value_residual'),
    ('encoder', 'skip_gains', True),
  ],
)
def test_what_is_fused_is_refused_by_name(side, field, value):
  fused = SideConfig(**{field: value})
  config = dataclasses.replace(_PRE, scan_layers=False, **{side: fused})
  with pytest.raises(InputError) as caught:
    exporting.check_model(config)
  message = f'--format=ctranslate2: config.model.{side}.{field} is {value!r}, '
  assert str(caught.value).startswith(message)


@pytest.mark.extended
def test_a_model_that_differs_is_not_exported(exported, tmp_path, monkeypatch):
  run, _ = exported
  right = exporting._set_norm

  def wrong(layer, norm):
    right(layer, norm)
    layer.beta = layer.beta + np.float32(0.01)

  monkeypatch.setattr(exporting, '_set_norm', wrong)
  with pytest.raises(RuntimeError, match=r'differs by .* not exported'):
    exporting.export(run, tmp_path / 'model')
  assert not list(tmp_path.iterdir())

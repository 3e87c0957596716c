"""Probes: what is readable is read, noise is not; the protocol by hand."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib import image

from fusion_jax import figures
from fusion_jax.analysis.frequency import frequency_bins
from fusion_jax.analysis.probes import training, view
from fusion_jax.analysis.probes.passes import ProbeOptions, ProbePasses
from fusion_jax.analysis.probes.text import (
  control_classes,
  make_classes,
  split,
  token_counts,
)
from fusion_jax.analysis.probes.training import Asked
from fusion_jax.analysis.run_with_text import RunWithText, TextChoice, TextPair
from fusion_jax.config import ExperimentConfig, ModelConfig, TokenizerConfig
from fusion_jax.data.tokenizer import Tokenizer, train
from fusion_jax.errors import InputError
from fusion_jax.models.transformer import initial_parameters
from fusion_jax.runs.loading import TrainedModel, make_model

_CLASSES, _WIDTH, _POSITIONS = 6, 16, 64
# Control classes that are no permutation.
_CONTROL = np.array([2, 2, 0, 5, 5, 1])


def _asked(seed):
  """Layer 0 has a code of the label, layer 1 is noise."""
  random = np.random.default_rng(seed)
  codes = np.random.default_rng(7).normal(size=(_CLASSES, _WIDTH))
  labels = random.integers(0, _CLASSES, _POSITIONS)
  noise = random.normal(size=(2, _POSITIONS, _WIDTH))
  states = np.stack([codes[labels] + 0.1 * noise[0], noise[1]])
  return Asked(
    jnp.asarray(states, jnp.float32),
    jnp.asarray(np.stack([labels, _CONTROL[labels]]), jnp.int32),
    jnp.ones(_POSITIONS, bool),
  )


_SHARES = jnp.stack(
  [
    jnp.full(_CLASSES, 1 / _CLASSES),
    jnp.asarray(np.bincount(_CONTROL, minlength=_CLASSES) / _CLASSES),
  ]
).astype(jnp.float32)


@functools.cache
def _fresh():
  return training.start(jax.random.key(0), 2, 2, _WIDTH, 32, _CLASSES)


@functools.cache
def _trained():
  @jax.jit
  def run(own, every, keys):
    def body(own, each):
      return training.update(own, each[0], _SHARES, 0.02, each[1]), None

    return jax.lax.scan(body, own, (every, keys))[0]

  every = [_asked(seed) for seed in range(200)]
  stacked = jax.tree.map(lambda *xs: jnp.stack(xs), *every)
  return run(_fresh(), stacked, jax.random.split(jax.random.key(1), 200))


def test_what_is_readable_is_read_and_noise_stays_at_chance():
  correct = training.answers(_trained().weights, _asked(1_000))
  for kind in training.KINDS:
    found = np.asarray(correct[kind]).mean(-1)
    np.testing.assert_array_equal(found[:, 0], 1.0)
    # Chance is 1/6 and, of the control, 1/3; 0.06 is the standard deviation
    # of 64 answers at 1/3.
    assert found[0, 1] < 1 / 6 + 4 * 0.06
    assert found[1, 1] < 1 / 3 + 4 * 0.06


def test_the_loss_is_a_softmax_over_candidates_by_hand():
  random = np.random.default_rng(2)
  out = random.normal(size=(2, 2, _CLASSES, _WIDTH)).astype(np.float32)
  weights = _trained().weights | {'linear': {'out': jnp.asarray(out)}}
  labels = np.array([[0, 3, 3, 6], [2, 5, 5, 6]])
  states = random.normal(size=(2, 4, _WIDTH)).astype(np.float32)
  keep = np.array([True, True, True, True])
  asked = Asked(
    jnp.asarray(states), jnp.asarray(labels, jnp.int32), jnp.asarray(keep)
  )
  got = training.candidate_losses(weights, asked, _SHARES)['linear']
  for task in range(2):
    classes = np.unique(labels[task][:3])
    # The chance that a class is among the 4 positions.
    chance = 1 - (1 - np.asarray(_SHARES)[task][classes]) ** 4
    for layer in range(2):
      logits = states[layer, :3] @ out[task, layer][classes].T
      logits = logits - np.log(chance)
      log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
      place = np.searchsorted(classes, labels[task][:3])
      want = -log_p[np.arange(3), place].sum()
      np.testing.assert_allclose(got[task, layer], want, rtol=1e-4)


@jax.jit
def _update(own, asked):
  return training.update(own, asked, _SHARES, 0.1, jax.random.key(0))


def test_an_update_moves_candidates_alone():
  asked = _asked(3)
  few = asked._replace(labels=jnp.where(asked.labels < 3, asked.labels, 0))
  hidden = few._replace(
    labels=few.labels.at[:, :5].set(4), keep=few.keep.at[:5].set(False)
  )
  new = _update(_trained(), hidden).weights
  for kind in training.KINDS:
    old, own = _trained().weights[kind]['out'], new[kind]['out']
    changed = np.abs(own - old).max((1, 3)) > 0
    want = [
      [c in set(np.asarray(few.labels[k, 5:])) for c in range(_CLASSES)]
      for k in range(2)
    ]
    np.testing.assert_array_equal(changed, want)
    assert np.isfinite(own).all()


def test_positions_without_any_label_leave_no_trace():
  asked = _asked(3)
  nothing = asked._replace(keep=jnp.zeros_like(asked.keep))
  new = _update(_fresh(), nothing)
  jax.tree.map(np.testing.assert_array_equal, new.weights, _fresh().weights)


def _pairs(lines):
  ids = np.array([4, 5, 3], np.int32)
  return [TextPair(ids, ids, line) for line in lines]


def test_of_ten_lines_eight_train_one_stops_and_one_tests():
  parts = split(_pairs(range(1, 24)))
  lines = {name: [pair.line for pair in own] for name, own in parts.items()}
  assert lines['stop'] == [9, 19]
  assert lines['test'] == [10, 20]
  assert lines['train'] == [*range(1, 9), *range(11, 19), 21, 22, 23]
  with pytest.raises(InputError, match='9 lines are too few'):
    split(_pairs(range(1, 10)))


def test_classes_and_bins_by_hand():
  # End symbols are no labels.
  assert token_counts(_pairs([1, 2]), 'source', 7).tolist() == [
    *(0, 0, 0, 0),
    *(2, 2, 0),
  ]
  counts = np.array([0, 1, 6, 0, 3])
  classes = make_classes(counts)
  assert classes.of_token.tolist() == [3, 2, 0, 3, 1]
  np.testing.assert_allclose(classes.shares, [0.6, 0.3, 0.1])
  assert make_classes(counts, 2).of_token.tolist() == [2, 2, 0, 2, 1]
  # Of 10 tokens the middles are 3, 7.5 and 9.5.
  assert frequency_bins(counts, 10)[[2, 4, 1]].tolist() == [6, 2, 0]
  assert frequency_bins(counts, 2)[[2, 4, 1]].tolist() == [1, 0, 0]


def test_control_classes_are_fixed_and_as_frequent_as_the_labels():
  shares = 1 / np.arange(1, 2_001)
  shares /= shares.sum()
  control = control_classes(shares)
  np.testing.assert_array_equal(control, control_classes(shares))
  assert control[-1] == 2_000
  assert not np.array_equal(np.sort(control[:-1]), np.arange(2_000))
  # 2,000 draws: 5 standard deviations of a share of 0.12 are 0.037.
  assert abs((control[:-1] == 0).mean() - shares[0]) < 0.037


class _Scripted(ProbePasses):
  """Epoch e leaves weights e and the losses of a table."""

  def __init__(self, losses):
    self._table = losses
    self.epochs = 0

  def batches(self, pairs):
    return 1

  def start(self, pairs):
    return {side: _fresh() for side in ('encoder', 'decoder')}

  def train(self, probes, pairs, epoch):
    self.epochs = epoch
    return {
      side: own._replace(
        weights=jax.tree.map(lambda x: jnp.full_like(x, epoch), own.weights)
      )
      for side, own in probes.items()
    }

  def losses(self, weights, pairs):
    now = jnp.asarray(self._table[self.epochs - 1], jnp.float32)
    same = dict.fromkeys(training.KINDS, now)
    return {'encoder': same, 'decoder': same}


def test_training_stops_early_and_keeps_the_best_epoch_of_each_probe():
  # By task and layer; nothing improves in epochs 4 and 5.
  table = [
    [[9, 9], [9, 5]],
    [[7, 8], [9, 6]],
    [[6, 9], [8, 6]],
    [[6, 9], [8, 6]],
    [[7, 9], [9, 7]],
    [[1, 1], [1, 1]],
  ]
  passes = _Scripted(table)
  options = ProbeOptions(patience=2)
  weights, epochs = view.trained(
    passes, dict.fromkeys(('train', 'stop'), _pairs([1])), options
  )
  assert epochs == passes.epochs == 5
  for side in ('encoder', 'decoder'):
    for kind in training.KINDS:
      best = weights[side][kind]['out'][..., 0, 0]
      np.testing.assert_array_equal(best, [[3, 2], [3, 1]])


def test_epochs_are_bounded():
  options = ProbeOptions()
  # 10,000 sentences of 25 subwords: 8,000 x 25 / 4,096 is 49 batches.
  assert options.epochs(49) == 4
  assert options.epochs(10_000) == options.least_epochs
  assert options.epochs(1) == options.most_epochs


_WORDS = ('the', 'cat', 'sat', 'on', 'mat', 'a', 'dog', 'in', 'house', 'big')


@pytest.fixture(scope='module')
def subject(tmp_path_factory):
  folder = tmp_path_factory.mktemp('text')
  random = np.random.default_rng(0)
  lines = [' '.join(random.choice(_WORDS, 5)) for _ in range(100)]
  (folder / 'text').write_text('\n'.join(lines) + '\n')
  tags = {word: 'NOUN' if len(word) == 3 else 'X' for word in _WORDS}
  rows = [
    ''.join(
      f'{number}\t{word}\t_\t{tags[word]}' + 6 * '\t_' + '\n'
      for number, word in enumerate(line.split(), start=1)
    )
    for line in lines
  ]
  (folder / 'tags').write_text('\n'.join(rows))
  tokenizer = Tokenizer(
    train(lines, TokenizerConfig(algorithm='bpe', vocabulary_size=60))
  )
  config = ExperimentConfig(
    model=ModelConfig(
      width=32, filter=32, heads=2, encoder_layers=1, decoder_layers=1
    )
  )
  model = make_model(config, tokenizer, tokenizer)
  parameters = initial_parameters(model, 0)
  run = TrainedModel(config, model, parameters, 1, tokenizer, tokenizer)
  text = str(folder / 'text')
  choice = TextChoice(text, text, 0, str(folder / 'tags'), 'target')
  return RunWithText(folder, run, choice)


def test_a_model_is_probed(subject, tmp_path, monkeypatch):
  measured = view.measure(
    subject, ProbeOptions(positions=64, most_epochs=15, hidden=64)
  )
  monkeypatch.setattr(view, 'measure', lambda _: measured)
  finding = view.look(subject)
  numbers = json.loads(json.dumps(finding.numbers, allow_nan=False))
  assert numbers['protocol']['lines'] == {'train': 80, 'stop': 10, 'test': 10}
  for side in ('encoder', 'decoder'):
    own = numbers[side]
    assert sum(own['bin_positions']) == own['positions']
    # The embedding is there with its position: each token can be told.
    assert own['linear']['accuracy'][0] > 0.95
    for kind in training.KINDS:
      np.testing.assert_allclose(
        own[kind]['selectivity'],
        np.subtract(own[kind]['accuracy'], own[kind]['control']),
      )
      # The accuracy of the whole is the mean over the bins.
      bins = np.array(own[kind]['bins'], float)
      shares = np.array(own['bin_positions']) / own['positions']
      np.testing.assert_allclose(
        np.nansum(bins * shares, 1), own[kind]['accuracy'], rtol=1e-6
      )
  tagged = numbers['decoder']
  assert set(tagged['tag_positions']) == {'NOUN', 'X'}
  assert sum(tagged['tag_positions'].values()) == tagged['positions']
  assert 'tag_positions' not in numbers['encoder']
  png, _ = figures.save(finding.draw(), tmp_path / 'probes')
  dark = image.imread(png)[..., :3].mean(-1) < 0.5
  assert all(part.mean() > 0.002 for part in np.array_split(dark, 3))


def test_what_is_asked_is_the_token_at_the_position(subject):
  parts = split(subject.pairs)
  size = subject.run.model.source_vocabulary
  counts = token_counts(parts['train'], 'source', size)
  classes = dict.fromkeys(('encoder', 'decoder'), make_classes(counts))
  # Room for all positions.
  options = ProbeOptions(tokens=256, updates=1, positions=4_096)
  passes = ProbePasses(subject, classes, options)
  fresh = passes.start(parts['train'])
  weights = {side: own.weights for side, own in fresh.items()}
  asked = {'encoder': 0, 'decoder': 0}
  for batch, _, answers in passes.answers(weights, parts['test']):
    for side, ids, shift in (
      ('encoder', batch.source, 0),
      ('decoder', batch.target, 1),
    ):
      own = answers[side]
      row, place = np.divmod(own.place[own.keep], ids.shape[1])
      np.testing.assert_array_equal(
        own.token[own.keep], ids[row, place - shift]
      )
      asked[side] += own.keep.sum()
  # Every subword once, end and start symbols never.
  want = sum(len(pair.source) - 1 for pair in parts['test'])
  assert asked == {'encoder': want, 'decoder': want}

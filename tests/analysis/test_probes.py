"""Probes: against SciPy's logistic regression; states and labels by hand."""

import dataclasses
import functools
import json
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fused_runs import assert_not_blank, fused_run, make_run, tokenizer_of
from scipy import optimize, special

from fusion_jax import startup
from fusion_jax.analysis import probes
from fusion_jax.analysis.probes import (
  KEPT,
  KINDS,
  Examples,
  ProbeOptions,
  layer_states,
  make_classes,
  scored,
  split,
  tokens_of,
  trained,
)
from fusion_jax.analysis.run_with_text import TextPair
from fusion_jax.analysis.views import VIEWS, look_at
from fusion_jax.errors import InputError
from fusion_jax.models.transformer import initial_parameters

_CLASSES, _WIDTH = 4, 6
_QUICK = ProbeOptions(hidden=32, rate=0.01, chunk=50, patience=5, gain=0.0)


def _examples(seed, count=330, noise=1.5):
  """Codes of the labels, so noisy that they cannot be told without error."""
  random = np.random.default_rng(seed)
  codes = np.random.default_rng(7).normal(size=(_CLASSES, _WIDTH))
  labels = random.integers(0, _CLASSES, count).astype(np.int32)
  values = codes[labels] + noise * random.normal(size=(count, _WIDTH))
  return Examples(values.astype(np.float32), labels)


def _of_scipy(examples):
  """The lowest mean loss of a linear classifier, and its accuracy."""
  inputs = np.c_[np.float64(examples.states), np.ones(len(examples.labels))]

  def loss(flat):
    logits = inputs @ flat.reshape(-1, _CLASSES)
    errors = special.softmax(logits, 1) - np.eye(_CLASSES)[examples.labels]
    log_p = special.log_softmax(logits, 1)
    chosen = log_p[np.arange(len(log_p)), examples.labels]
    return -chosen.mean(), (inputs.T @ errors / len(errors)).ravel()

  found = optimize.minimize(
    loss, np.zeros(inputs.shape[1] * _CLASSES), jac=True
  )
  answers = (inputs @ found.x.reshape(-1, _CLASSES)).argmax(1)
  return found.fun, (answers == examples.labels).mean()


@pytest.mark.parametrize(('chunk', 'close'), [(330, 1e-3), (50, 0.01)])
def test_a_linear_probe_is_a_logistic_regression(chunk, close):
  examples = _examples(0)
  loss, accuracy = _of_scipy(examples)
  assert 0.2 < loss < np.log(_CLASSES) - 0.2
  options = dataclasses.replace(_QUICK, chunk=chunk, patience=20)
  weights, _ = trained('linear', examples, examples, _CLASSES, options)
  losses, correct = scored(weights, examples, chunk)
  np.testing.assert_allclose(losses.mean(), loss, rtol=close)
  np.testing.assert_allclose(correct.mean(), accuracy, atol=close)


def test_an_mlp_tells_what_a_linear_probe_cannot():
  random = np.random.default_rng(0)
  values = random.choice([-1.0, 1.0], (400, 2)).astype(np.float32)
  labels = (values.prod(1) > 0).astype(np.int32)
  examples = Examples(values, labels)
  found = {
    kind: scored(trained(kind, examples, examples, 2, _QUICK)[0], examples, 50)[
      1
    ].mean()
    for kind in KINDS
  }
  assert found['mlp'] == 1
  assert found['linear'] < 0.8


@pytest.mark.parametrize('kind', KINDS)
def test_training_stops_and_keeps_the_best_weights(kind):
  stop, labels = _examples(1), np.random.default_rng(0).integers(0, 4, 60)
  noise = _examples(0, 60)._replace(labels=labels.astype(np.int32))
  best, epochs = trained(kind, noise, stop, _CLASSES, _QUICK)
  assert _QUICK.patience < epochs < 100
  shorter = dataclasses.replace(_QUICK, most_epochs=epochs - _QUICK.patience)
  same, fewer = trained(kind, noise, stop, _CLASSES, shorter)
  assert fewer == epochs - _QUICK.patience
  jax.tree.map(np.testing.assert_array_equal, best, same)


@pytest.mark.parametrize('kind', KINDS)
def test_a_label_without_a_class_is_not_learned_and_never_right(kind):
  known = _examples(0, 100)
  none = _examples(1, 100)._replace(labels=np.full(100, _CLASSES, np.int32))
  both = Examples(
    *(np.concatenate(each) for each in zip(known, none, strict=True))
  )
  few = dataclasses.replace(_QUICK, chunk=200, most_epochs=20)
  alone, _ = trained(kind, known, known, _CLASSES, few)
  weights, _ = trained(kind, both, known, _CLASSES, few)
  np.testing.assert_allclose(
    scored(weights, known, 100)[0].mean(),
    scored(alone, known, 100)[0].mean(),
    rtol=1e-3,
  )
  losses, correct = scored(weights, both, 64)
  assert not losses[100:].any()
  assert not correct[100:].any()
  for whole, parts in zip(
    (losses, correct), scored(weights, both, 200), strict=True
  ):
    np.testing.assert_allclose(whole, parts, rtol=1e-5)


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


def test_classes_by_hand():
  # End symbols are no labels.
  assert tokens_of(_pairs([1, 2]), 'encoder').tolist() == [4, 5, 4, 5]
  counts = np.array([0, 1, 6, 0, 3])
  classes = make_classes(counts)
  assert classes.of_token.tolist() == [3, 2, 0, 3, 1]
  assert classes.counts.tolist() == [6, 3, 1]
  assert make_classes(counts, 2).of_token.tolist() == [2, 2, 0, 2, 1]


_WORDS = ('the', 'cat', 'sat', 'on', 'mat', 'a', 'dog', 'in', 'house', 'big')


@pytest.fixture(scope='module')
def analysed(tmp_path_factory):
  folder = tmp_path_factory.mktemp('text')
  random = np.random.default_rng(0)
  lines = [' '.join(random.choice(_WORDS, 5)) for _ in range(100)]
  tags = {word: 'NOUN' if len(word) == 3 else 'X' for word in _WORDS}
  rows = [
    ''.join(
      f'{number}\t{word}\t_\t{tags[word]}' + 6 * '\t_' + '\n'
      for number, word in enumerate(line.split(), start=1)
    )
    for line in lines
  ]
  (folder / 'tags').write_text('\n'.join(rows))
  sizes = {'width': 32, 'encoder_layers': 1, 'decoder_layers': 1}
  run = make_run(tokenizer=tokenizer_of(lines, 60), **sizes)
  run = dataclasses.replace(run, parameters=initial_parameters(run.model, 1))
  found = fused_run(run, folder, lines, lines)
  tagged = {'tags': str(folder / 'tags'), 'tags_side': 'target'}
  choice = dataclasses.replace(found.choice, **tagged)
  return dataclasses.replace(found, choice=choice)


def test_a_model_is_probed(analysed, tmp_path):
  options = ProbeOptions(hidden=64, rate=0.01, chunk=64)
  quick = functools.partial(probes.probes, options=options)
  found = look_at(
    dataclasses.replace(VIEWS['probes'], measure=quick), analysed, tmp_path
  )
  numbers = json.loads(json.dumps(found['numbers'], allow_nan=False))
  assert numbers['protocol']['lines'] == {'train': 80, 'stop': 10, 'test': 10}
  for side in ('encoder', 'decoder'):
    own = numbers[side]
    assert sum(own['bin_positions']) == own['positions']
    for kind in KINDS:
      # The embedding is there with its position: each token can be told.
      assert min(own[kind]['accuracy'][0], own[kind]['untrained'][0]) > 0.95
      np.testing.assert_allclose(
        own[kind]['selectivity'],
        np.subtract(own[kind]['accuracy'], own[kind]['untrained']),
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
  assert_not_blank(tmp_path / 'probes.png')


def test_probes_go_on_where_they_were_interrupted(
  analysed, tmp_path, monkeypatch, caplog
):
  caplog.set_level(logging.INFO)
  monkeypatch.setattr(startup, '_SECONDS_BETWEEN_LINES', 0)
  options, calls, most = ProbeOptions(hidden=8, most_epochs=1), [], 5
  expected = probes.probes(analysed, options)
  most_probes = 2 * 2 * 2 * 2  # Trained or not, sides, kinds, H[0] and H[1].
  assert f'1 of {most_probes} probes, ' in caplog.text
  assert ' s left' in caplog.text

  def interrupted(*given):
    if len(calls) == most:
      raise KeyboardInterrupt
    calls.append(given)
    return trained(*given)

  monkeypatch.setattr(probes, 'trained', interrupted)
  folder = tmp_path / 'analysis'
  kept = dataclasses.replace(analysed, folder=folder)
  with pytest.raises(KeyboardInterrupt):
    probes.probes(kept, options)
  finished = json.loads((folder / KEPT).read_text())['finished']
  assert len(finished) == 5
  assert 'trained, encoder, H[0], mlp' in finished
  caplog.clear()
  with pytest.raises(KeyboardInterrupt):
    probes.probes(kept, dataclasses.replace(options, hidden=4))
  assert ' right after ' not in caplog.text
  most = most_probes
  assert probes.probes(kept, options) == expected
  assert len(calls) == most_probes
  assert not list(folder.iterdir())


def test_the_control_is_the_model_before_its_training(analysed, monkeypatch):
  given = []

  def noted(model, parameters, pairs):
    given.append(parameters)
    return layer_states(model, parameters, pairs)

  monkeypatch.setattr(probes, 'layer_states', noted)
  probes.probes(analysed, ProbeOptions(hidden=8, most_epochs=1))
  fresh = initial_parameters(analysed.run.model, 0)
  assert given[0] is analysed.run.parameters
  jax.tree.map(np.testing.assert_array_equal, given[1], fresh)


def test_states_are_those_of_each_line_alone(analysed):
  run, pairs = analysed.run, analysed.pairs[:12]
  found = layer_states(run.model, run.parameters, pairs)
  done = 0
  for pair in pairs:
    ids = [jnp.asarray(each)[None] for each in pair[:2]]
    lengths = [jnp.array([each.size], jnp.int32) for each in ids]
    output = run.model.apply(
      {'params': run.parameters}, ids[0], lengths[0], ids[1]
    )
    count = len(pair.source) - 1
    for layer in range(2):
      for side, alone in (
        ('encoder', output.encoder_layers[layer][0, :count]),
        # Position t of the decoder reads token t - 1.
        ('decoder', output.decoder_layers[layer][0, 1 : count + 1]),
      ):
        own = found[side][layer, done : done + count]
        np.testing.assert_allclose(own, alone, atol=1e-5)
    done += count
  assert found['encoder'].shape == found['decoder'].shape == (2, done, 32)

"""What hops, routing, shortcuts, groups and SurfaceFusion sow."""

import dataclasses
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import reading
from fused_runs import (
  SOURCES,
  TARGETS,
  all_at_once,
  assert_not_blank,
  fused_run,
  make_run,
  numbers_of,
  rows_of,
  shown,
)
from tiers import extended_but

from fusion_jax import figures
from fusion_jax.analysis.passes import frequency_bins, subword_counts
from fusion_jax.analysis.views import VIEWS, look_at
from fusion_jax.cli.run import with_groups
from fusion_jax.config import ModelConfig
from fusion_jax.config.fusion import SideConfig
from fusion_jax.decoding.translate import Translator

GATES = VIEWS['gates']

SELF, BOTH, CROSS = (
  reading('shortcut', source='lexical', where=where)
  for where in ('self', 'both', 'cross')
)
# Without these K_S = K_H = 0 and V_S = V_H = 0: gates are sigmoid(bias).
NO_PROJECTIONS = {
  f'self_attention/{name}/{part}': 0.0
  for name in ('key', 'value')
  for part in ('kernel', 'bias')
} | {f'shortcut_{name}/kernel': 0.0 for name in ('key', 'value')}
# sigmoid(log 3) = 3 / 4.
LOG_3 = np.log(3)


@pytest.fixture(scope='module')
def analysed(tmp_path_factory):
  run = make_run(encoder=SELF, decoder=BOTH)
  return fused_run(run, tmp_path_factory.mktemp('gates'))


@pytest.fixture(scope='module')
def numbers(analysed):
  return numbers_of(GATES, analysed)


def test_by_layer_against_all_gates_of_the_text(analysed, numbers):
  _, sources, _, targets = all_at_once(analysed)
  views = shown(analysed)
  places = {
    'encoder self-attention': sources,
    'decoder self-attention': targets,
    'decoder cross-attention': sources,
  }
  assert list(numbers) == list(places)
  for place, lengths in places.items():
    side, attention = place.replace('-', '_').split()
    assert numbers[place]['positions']['all'] == lengths.sum()
    for kind in ('key_gate', 'value_gate'):
      for layer in range(2):
        gates = views[side][f'layer_{layer}'][attention][kind]
        own = rows_of(gates, lengths)
        moments = [
          numbers[place][kind][moment]['layer'][layer]
          for moment in ('mean', 'deviation')
        ]
        np.testing.assert_allclose(moments, [own.mean(), own.std()], rtol=1e-4)


def test_by_frequency_of_what_the_position_reads(analysed, numbers):
  run, pairs = analysed.run, analysed.pairs
  counts = subword_counts((p.target for p in pairs), run.target_tokenizer)
  bins = frequency_bins(counts)
  gates = shown(analysed)['decoder']['layer_0']['self_attention']['value_gate']
  found = [[] for _ in range(10)]
  for row, pair in zip(gates, pairs, strict=True):
    # Position t reads token t - 1; the first reads the start symbol.
    for place, token in enumerate(pair.target[:-1], start=1):
      found[bins[token]].append(row[place])
  own = numbers['decoder self-attention']
  assert own['positions']['frequency'] == [len(each) for each in found]
  for number, each in enumerate(found):
    mean = own['value_gate']['mean']['frequency'][number][0]
    if each:
      np.testing.assert_allclose(mean, np.mean(each), rtol=1e-4)
    else:
      assert mean is None


@pytest.mark.parametrize(
  'run_as',
  extended_but(
    [
      {'remat': True},
      {'scan_layers': True},
      {'scan_layers': True, 'remat': True},
    ],
    lambda run_as: len(run_as) == 2,
  ),
)
def test_without_projections_gates_are_those_of_their_bias(tmp_path, run_as):
  biases = {'key_gate_bias': 0.0, 'value_gate_bias': LOG_3}
  run = make_run(NO_PROJECTIONS | biases, encoder=SELF, **run_as)
  numbers = GATES.measure(fused_run(run, tmp_path))
  assert list(numbers) == ['encoder self-attention']
  own = numbers['encoder self-attention']
  for kind, expected in (('key_gate', 0.5), ('value_gate', 0.75)):
    for part in ('layer', 'position', 'frequency'):
      rows = [
        row for row in own[kind]['mean'][part] if row not in (None, [None] * 2)
      ]
      assert rows
      np.testing.assert_allclose(rows, expected, rtol=1e-5)
    deviations = own[kind]['deviation']['layer']
    # The root of a mean square's rounding.
    np.testing.assert_allclose(deviations, [0, 0], atol=1e-3)


def test_layers_that_no_group_reads_have_no_gates(tmp_path):
  # The first of two groups translates; the memory is made for both layers.
  options = {'group_size': 1, 'inference_groups': '1:1'}
  decoder = dataclasses.replace(BOTH, fusion='gtrans', options=options)
  numbers = GATES.measure(fused_run(make_run(decoder=decoder), tmp_path))
  layers = [len(own['key_gate']['mean']['layer']) for own in numbers.values()]
  assert layers == [1, 2]


ROUTING_VIEW = VIEWS['couplings']

# Capsules of width 2 and 4.
DYNAMIC = SideConfig('dynamic_routing', {'capsules': 8, 'iterations': 2})
EM = SideConfig('em_routing', {'capsules': 4})


@pytest.fixture(scope='module')
def routing_analysed(tmp_path_factory):
  run = make_run(encoder=DYNAMIC, decoder=EM)
  return fused_run(run, tmp_path_factory.mktemp('routing'))


@pytest.fixture(scope='module')
def looked(routing_analysed):
  folder = routing_analysed.workdir / 'analysis'
  return look_at(ROUTING_VIEW, routing_analysed, folder)


def _entropy(couplings):
  terms = -couplings * np.log(np.maximum(couplings, 1e-30))
  return terms.sum(2).mean()


def _diversity(couplings):
  """The mean over tokens and pairs of capsules of 1 - cosine."""
  units = couplings / np.linalg.norm(couplings, axis=1, keepdims=True)
  cosines = np.einsum('PLi,PLj->Pij', units, units)
  pairs = np.triu_indices(couplings.shape[2], 1)
  return 1 - cosines[:, *pairs].mean()


@pytest.mark.extended
def test_means_are_over_the_tokens_of_the_text(routing_analysed, looked):
  _, sources, _, targets = all_at_once(routing_analysed)
  views = shown(routing_analysed)
  for side, lengths in (('encoder', sources), ('decoder', targets)):
    own = looked['numbers'][side]
    # [tokens, I, L, N]
    rows = rows_of(views[side]['read_out']['couplings'], lengths)
    assert own['positions'] == len(rows) == lengths.sum()
    np.testing.assert_allclose(own['couplings'], rows.mean(0), atol=1e-6)
    entropies = [_entropy(rows[:, i]) for i in range(rows.shape[1])]
    np.testing.assert_allclose(own['entropy'], entropies, atol=1e-5)
    diversities = [_diversity(rows[:, i]) for i in range(rows.shape[1])]
    np.testing.assert_allclose(own['diversity'], diversities, atol=1e-5)
  assert looked['numbers']['encoder']['diversity'][1] > 0.01


def test_the_paper_stands_beside(routing_analysed, looked):
  for side, uniform in (('encoder', 8), ('decoder', 4)):
    own = looked['numbers'][side]
    assert own['uniform_entropy'] == pytest.approx(math.log(uniform))
    # The first iteration is uniform, and the others decide.
    assert own['entropy'][0] == pytest.approx(math.log(uniform), abs=1e-5)
    assert max(own['entropy'][1:]) < math.log(uniform) - 1e-3
  # Dou et al. (2019), section 4.3.4; log 512 is 6.24.
  paper = looked['numbers']['paper']
  assert paper['entropy'][0] == round(paper['uniform_entropy'], 2) == 6.24
  assert 'of at most 1.39' in looked['summary']  # log 4
  assert_not_blank(routing_analysed.workdir / 'analysis/couplings.png')


HOPS_VIEW = VIEWS['hops']

FEATURES = SideConfig(
  'hops', {'hops': 2, 'scorer_width': 6, 'include_embedding': False}
)
LAYERS = SideConfig('hops', {'hops': 3, 'scorer_width': 6})


@pytest.fixture(scope='module')
def hops_analysed(tmp_path_factory):
  run = make_run(encoder=FEATURES, decoder=LAYERS)
  return fused_run(run, tmp_path_factory.mktemp('hops'))


@pytest.fixture(scope='module')
def hops_numbers(hops_analysed):
  return numbers_of(HOPS_VIEW, hops_analysed)


def test_means_are_over_the_tokens_of_the_text_hops(
  hops_analysed, hops_numbers
):
  _, sources, _, targets = all_at_once(hops_analysed)
  views = shown(hops_analysed)
  for side, lengths in (('encoder', sources), ('decoder', targets)):
    rows = rows_of(views[side]['read_out']['hop_attention'], lengths)
    names = ['H[1]', 'H[2]'] if side == 'encoder' else ['H[0]', 'H[1]', 'H[2]']
    assert hops_numbers[side]['layers'] == names
    assert hops_numbers[side]['positions'] == len(rows)
    np.testing.assert_allclose(
      hops_numbers[side]['mean'], rows.mean(0).T, rtol=1e-5
    )


@pytest.mark.parametrize(
  ('side', 'text'), [('encoder', SOURCES), ('decoder', TARGETS)]
)
def test_the_first_five_sentences_are_shown_word_by_word(
  hops_analysed, hops_numbers, side, text
):
  sentences = hops_numbers[side]['sentences']
  assert [sentence['line'] for sentence in sentences] == [1, 2, 3, 4, 5]
  for sentence, line in zip(sentences, text, strict=False):
    *words, end = sentence['pieces']
    assert ''.join(words).replace('▁', ' ').strip() == line
    assert end == '</s>'
    if side == 'encoder':
      assert sentence['read'] == sentence['pieces']
    else:
      assert sentence['read'] == ['<s>', *words]
  # The sentences are those of the whole text's pass.
  seen = shown(hops_analysed)[side]['read_out']['hop_attention']
  for row, sentence in zip(seen, sentences, strict=False):
    expected = row[: len(sentence['pieces'])].transpose(2, 1, 0)
    np.testing.assert_allclose(sentence['attention'], expected, atol=1e-5)


def test_pieces_that_look_like_formulas_are_drawn(hops_numbers, tmp_path):
  changed = json.loads(json.dumps(hops_numbers))
  first = changed['decoder']['sentences'][0]
  first['pieces'] = ['$\\no$'] * len(first['pieces'])
  png, svg = figures.save(HOPS_VIEW.draw(changed), tmp_path / 'dollars')
  assert_not_blank(png)
  assert '$\\no$' in svg.read_text()


GROUPS, GROUP_BLEU = VIEWS['groups'], VIEWS['group_bleu']
ONE = SideConfig('gtrans', {'group_size': 1})
LAST = SideConfig('gtrans', {'group_size': 1, 'mode': 'last'})
# psi of the weights tau log(1, 2, 5) is 1/8, 2/8, 5/8; tau = sqrt(width 16).
PSI = [0.125, 0.25, 0.625]
WEIGHTS = 4 * np.log([1.0, 2.0, 5.0])


def _three_groups(**options):
  return make_run(
    {
      'decoder/prediction/group_weights': WEIGHTS,
      # sigmoid(0) and sigmoid(+-log 3).
      'decoder/prediction/layer_weights': [0.0, math.log(3), -math.log(3)],
      'encoder/read_out/weights': [math.log(3)],
    },
    encoder=SideConfig(fusion='gtrans'),
    decoder=ONE,
    decoder_layers=3,
    **options,
  )


def _log(folder, *rows):
  lines = ''.join(f'{json.dumps(row)}\n' for row in rows)
  (folder / 'metrics.jsonl').write_text(lines)


def test_weights_of_hand_made_parameters(tmp_path):
  analysed = fused_run(_three_groups(), tmp_path)
  _log(tmp_path, {'step': 1, 'kind': 'train', 'loss': 2.0})
  numbers = GROUPS.measure(analysed)
  assert numbers['training'] is None
  weights = numbers['weights']
  assert list(weights) == ['encoder', 'decoder_layers', 'psi']
  np.testing.assert_allclose(weights['psi'], PSI, rtol=1e-5)
  np.testing.assert_allclose(weights['decoder_layers'], [0.5, 0.75, 0.25])
  np.testing.assert_allclose(weights['encoder'], [0.75])
  # Groups of three layers in an encoder of two.
  assert numbers['layers'] == {
    'encoder': [[1, 2]],
    'decoder': [[1, 1], [2, 2], [3, 3]],
  }


def test_weights_over_the_training(tmp_path, caplog):
  analysed = fused_run(_three_groups(), tmp_path)
  psi = 'decoder/prediction/group_weights'
  rows = [
    {
      'step': step,
      'kind': 'fusion',
      'encoder/read_out/group_weights_0': 0.5,
      **{f'{psi}_{k}': value for k, value in enumerate(values)},
      f'{psi}_of_another': 9.0,
    }
    for step, values in ((10, [0.3, 0.3, 0.4]), (20, [0.2, None, 0.6]))
  ]
  _log(tmp_path, *rows)
  finding = look_at(GROUPS, analysed, tmp_path / 'analysis')
  assert not caplog.records
  training = finding['numbers']['training']
  assert training == {
    'steps': [10, 20],
    'encoder': [[0.5, 0.5]],
    'psi': [[0.3, 0.2], [0.3, None], [0.4, 0.6]],
  }
  assert 'psi: 0.125, 0.250, 0.625' in finding['summary']
  assert_not_blank(tmp_path / 'analysis/groups.png')


def test_ten_groups_are_in_their_order(tmp_path):
  run = make_run(
    {'decoder/prediction/group_weights': np.arange(11.0)},
    decoder=LAST,
    decoder_layers=11,
  )
  names = [f'decoder/prediction/group_weights_{k}' for k in range(11)]
  _log(tmp_path, {'step': 5, 'kind': 'fusion'} | dict.fromkeys(names, 0.1))
  analysed = fused_run(run, tmp_path)
  finding = look_at(GROUPS, analysed, tmp_path)
  assert list(finding['numbers']['weights']) == ['psi']
  training = finding['numbers']['training']
  assert np.shape(training['psi']) == (11, 1)
  # One line of the log is no curve; two are.
  assert _panels(finding['numbers']) == 1
  twice = {
    'steps': 2 * training['steps'],
    'psi': [2 * values for values in training['psi']],
  }
  assert _panels(finding['numbers'] | {'training': twice}) == 2


def _panels(numbers):
  return sum(axes.has_data() for axes in GROUPS.draw(numbers).axes)


def test_without_metrics_the_weights_are_there(tmp_path, caplog):
  run = make_run(decoder=ONE, decoder_layers=6)
  finding = look_at(GROUPS, fused_run(run, tmp_path), tmp_path / 'a')
  (record,) = caplog.records
  assert 'metrics.jsonl' in record.getMessage()
  assert len(finding['numbers']['weights']['psi']) == 6
  # The paper's psi have as many groups, and are drawn beside.
  assert sum(finding['numbers']['paper']) == pytest.approx(1)
  svg = (tmp_path / 'a/groups.svg').read_text(encoding='utf-8')
  assert 'Yang 2022, 6 + 18 layers' in svg
  assert_not_blank(tmp_path / 'a/groups.png')


@pytest.mark.extended
def test_bleu_of_every_group(tmp_path):
  run = make_run(
    {'decoder/prediction/group_weights': [0.0, 4 * math.log(3)]},
    # With this seed both groups translate into several words.
    scale=1.0,
    encoder_layers=1,
    decoder=ONE,
  )
  # What the first group says is the reference: it alone has all of it right.
  sources = [line for line in SOURCES + TARGETS if len(line.split()) > 5]
  first = with_groups(run, '1:1')
  translator = Translator(first, run.config.decoding)
  references = list(translator.translate(sources))
  assert max(len(line.split()) for line in references) > 3
  analysed = fused_run(run, tmp_path, sources, references)
  finding = look_at(GROUP_BLEU, analysed, tmp_path / 'analysis')
  numbers = finding['numbers']
  assert numbers['single'][0] == pytest.approx(100)
  assert numbers['pruned'][1] == numbers['single'][1] < 99
  assert len(numbers['pruned']) == 2
  np.testing.assert_allclose(numbers['psi'], [0.25, 0.75], rtol=1e-5)
  assert numbers['lines'] == len(sources)
  assert numbers['signature'].startswith('nrefs:1|')
  assert numbers['decoding']['beam_size'] == 1
  assert 'group 1 of 2, has 100.00' in finding['summary']
  assert_not_blank(tmp_path / 'analysis/group_bleu.png')


SURFACE_VIEW = VIEWS['surface']


def _decoder(**options):
  return SideConfig('surface_fusion', options)


@pytest.fixture(scope='module')
def surface_analysed(tmp_path_factory):
  run = make_run(decoder=_decoder(kind='learned'))
  return fused_run(run, tmp_path_factory.mktemp('surface'))


def _expected(surface_analysed):
  """g and the three losses of every target subword, and the subwords."""
  *source, target, lengths = all_at_once(surface_analysed)
  run = surface_analysed.run
  output = run.model.apply(
    {'params': run.parameters}, *map(jnp.asarray, (*source, target))
  )
  table = np.asarray(output.output.table)
  log_p = jax.nn.log_softmax(np.asarray(output.features) @ table.T)
  index = np.broadcast_to(target[None, ..., None], (2, *target.shape, 1))
  log_p = np.take_along_axis(np.asarray(log_p), index, -1)[..., 0]
  psi = np.exp(output.log_weights)
  each = psi[0], *-log_p, -(psi * log_p).sum(0)
  return [rows_of(x, lengths) for x in each], rows_of(target, lengths)


def test_against_all_subwords_of_the_text(surface_analysed):
  numbers = numbers_of(SURFACE_VIEW, surface_analysed)
  assert_not_blank(surface_analysed.workdir / 'analysis' / 'surface.png')
  quantities, tokens = _expected(surface_analysed)
  counts = subword_counts(
    (pair.target for pair in surface_analysed.pairs),
    surface_analysed.run.target_tokenizer,
  )
  bins = frequency_bins(counts)[tokens]
  assert numbers['tokens']['all'] == len(tokens)
  assert numbers['tokens']['frequency'] == [
    int((bins == number).sum()) for number in range(10)
  ]
  for name, own in zip(
    ('weight', 'own', 'surface', 'both'), quantities, strict=True
  ):
    np.testing.assert_allclose(numbers[name]['all'], own.mean(), rtol=1e-4)
    for number in range(10):
      value, there = numbers[name]['frequency'][number], bins == number
      if there.any():
        np.testing.assert_allclose(value, own[there].mean(), rtol=1e-4)
      else:
        assert value is None


def test_added_scores_are_no_two_predictions():
  config = ModelConfig(decoder=_decoder())
  assert SURFACE_VIEW.applies(config)
  soft = dataclasses.replace(config, decoder=_decoder(kind='soft'))
  assert not SURFACE_VIEW.applies(soft)

"""Every config builds and reads back; its sizes are those of the papers."""

import contextlib
import functools
import tomllib
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from tiers import extended_but

from fusion_jax.config import ModelConfig
from fusion_jax.config.flags import load_config
from fusion_jax.config.presets import changed
from fusion_jax.config.serialization import from_dict, to_dict
from fusion_jax.errors import InputError
from fusion_jax.models.losses import cross_entropy
from fusion_jax.models.transformer import Transformer, initial_parameters
from fusion_jax.training.optimizer import make_schedule

_CONFIGS = Path(__file__).parents[2] / 'configs'
_FILES = sorted(path.name for path in _CONFIGS.glob('*.py'))
_PAIRS = {'multi30k.py': ['fr-de'], 'quickstart.py': ['es-nl']}
_ALONE = 'kyoto_jaen.py', *_PAIRS

# What later schemes add to base, with its norm, by their equations.
_LATER = {
  # Pre-norm has 2,048 more, the weights are two squares of 7 x 7.
  'denseformer': 98,
  'denseformer_output': 98,
  # Two sublayers in six layers and three in six.
  'skip_gains': 30,
  # Two stacks, each of sum_l D K + K C (l + 1) + C (l + 1); four ways have two
  # norms more in five of six layers.
  'mudd': 134_518,
  # The sum after layer 6, 512 x 28 + 28 x 7 + 7, is replaced by those of two
  # memories of six layers, C = 12: 512 x 84 + 84 x 84 + 84.
  'mudd_memory': 134_518 - 14_539 + 50_148,
  'mudd_one_way': 49_778,
  # Two stacks of seven sums, of 1 to 7 outputs: 28 weights, or 28 vectors, and
  # seven directions. With three ways 3 (21 + 6) + 7 + 1 vectors, and 12 norms
  # of keys and values; of the last two, at most 4 outputs: 3 (18 + 6) + 4 + 1.
  'grn_v1': 2 * 28,
  'grn_v2': 2 * 28 * 512,
  'grn_v3': 2 * 35 * 512,
  'deep_cross_attention': 2 * (89 + 24) * 512,
  'deep_cross_attention_last_2': 2 * (77 + 24) * 512,
  # Queries and scales, 2 x 512: 11 of 12 sublayers, 17 of 18, two last reads;
  # by layer 5 of 6 in each. Delta: 10, 16, no last read, 11 and 17 gates.
  'attention_residuals': 30_720,
  'attention_residuals_block': 30_720,
  'attention_residuals_heads': 30_720,
  'attention_residuals_layer': 12_288,
  'attention_residuals_delta': 26_652,
  # Nothing but other sums and other initial weights.
  'b2t': 0,
  'deepnorm': 0,
  # An attention, 4 (512^2 + 512), and a gate, 2 x 512 + 1.
  'surface_fusion': 1_050_624,
  'surface_fusion_soft': 1_050_624,
  'surface_fusion_learned': 1_051_649,
  # Two weights in five layers of each stack.
  'value_residual': 20,
  # No projection of values, 512 x 512 + 512, in ten layers.
  'value_residual_shared': -2_626_560,
  # 30 sublayers, each with 24 numbers, 24 + 3,072 + 2, 16,394 and 49,179.
  'hyper_connections': 92_940,
  'hyper_connections_static': 720,
  'hyper_connections_identity_mix': 491_820,
  'hyper_connections_manifold': 1_475_370,
  # 7 x 6 x 512 weights, and a norm.
  'transparent_by_feature': 22_528,
}

_PRINTED = tomllib.loads(
  Path(__file__).with_name('printed_sizes.toml').read_text()
)
_ADDED = _PRINTED['added']


def _load(name: str):
  return load_config(str(_CONFIGS / name))


def _variants(file: str) -> list[str]:
  """All of a file, as the message about a wrong one lists them."""
  if file in _ALONE:
    return _PAIRS.get(file, [])
  with pytest.raises(InputError, match="no variant 'x'; there are ") as raised:
    _load(f'{file}:x')
  return str(raised.value).rpartition('there are ')[2].split(', ')


@functools.cache
def _count(model: ModelConfig, source: int, target: int) -> int:
  """Layers that are alike are traced once: a quarter of the time."""
  with contextlib.suppress(InputError):
    model = changed(model, {'scan_layers': True})
  fresh = functools.partial(
    initial_parameters, Transformer(model, source, target, 2), 0
  )
  return sum(x.size for x in jax.tree.leaves(jax.eval_shape(fresh)))


def _count_of(name: str, **changes: object) -> int:
  config = _load(name)
  size = config.data.tokenizer.vocabulary_size
  return _count(changed(config.model, changes), size, size)


def _as_printed(count: int, printed: str) -> str:
  """The count to as many places as what is printed."""
  unit = {'M': 1e6, 'K': 1e3}[printed[-1]]
  places = len(printed[:-1].partition('.')[2])
  return f'{count / unit:,.{places}f}{printed[-1]}'


@pytest.mark.parametrize('file', _FILES)
def test_every_variant_reads_back(file):
  models = {}
  for variant in _variants(file):
    config = _load(f'{file}:{variant}')
    assert from_dict(to_dict(config)) == config
    models[config] = variant
  assert len(models) == len(_variants(file))
  _load(file)


@pytest.mark.parametrize('name', extended_but(_LATER, list(_LATER)[::9]))
def test_what_a_later_scheme_adds(name):
  norm = _load(f'wmt14_ende.py:{name}').model.norm
  base = _count_of('wmt14_ende.py:base', norm=norm)
  assert _count_of(f'wmt14_ende.py:{name}') - base == _LATER[name]


def test_the_second_phase_is_that_of_wang():
  """Their section 4.1: 5e-5 and 32 sentences where there were 80."""
  names = ('mlrf_fnn_sa', 'mlrf_fnn_sa_phase2')
  first, second = (_load(f'iwslt14_deen.py:{name}') for name in names)
  assert second.model == first.model
  assert second.data.tokenizer == first.data.tokenizer
  assert second.data.batch.tokens / first.data.batch.tokens == pytest.approx(
    32 / 80, rel=2e-3
  )
  # 160K pairs: 40 epochs of 2,000 steps, then 20 of 5,000.
  assert (first.training.steps, second.training.steps) == (80_000, 100_000)
  rate = make_schedule(second.optimizer, second.model.width)
  assert [float(rate(count)) for count in (0, 1, 99_999)] == pytest.approx(
    [5e-5] * 3
  )


@pytest.mark.parametrize('name', extended_but(_ADDED, list(_ADDED)[::5]))
def test_what_fusion_adds_is_what_the_paper_has(name):
  big = name.partition(':')[2].startswith('big')
  base = f'{name.partition(":")[0]}:{"big" if big else "base"}'
  added = _count_of(name) - _count_of(base)
  assert _as_printed(added, _ADDED[name]) == _ADDED[name]


@pytest.mark.parametrize(
  ('name', 'vocabularies', 'printed'),
  extended_but(
    [
      (name, rows['vocabularies'], printed)
      for rows in _PRINTED['all']
      for name, printed in rows['printed'].items()
    ],
    lambda case: case[0].endswith(('mlrf_fnn_sa', ':feature_fusion')),
  ),
)
def test_the_size_is_what_the_paper_has(name, vocabularies, printed):
  """The sizes of Wang et al. fit norms without scale and offset.

  With both, two of the rows are at most 300 parameters past the rounding.
  """
  model = _load(name).model
  plain = {
    f'{side}.options.norm': 'plain'
    for side in ('encoder', 'decoder')
    if model.side(side).fusion in ('average', 'feed_forward', 'hops')
  }
  count = _count(changed(model, plain), *vocabularies)
  assert _as_printed(count, printed) == printed


@pytest.mark.parametrize(
  'name', extended_but([*_FILES, 'opus100.py:post_norm'], ['iwslt17_multi.py'])
)
def test_a_batch_has_a_loss(name):
  config = _load(name)
  size = config.data.tokenizer.vocabulary_size
  model = Transformer(config.model, size, size, 2)

  def loss(source, lengths, target):
    parameters = initial_parameters(model, 0)
    output = model.apply({'params': parameters}, source, lengths, target)
    return cross_entropy(
      *(output.features, output.output, target, lengths, 0.1, 64),
      output.log_weights,
      config.model.decoder.combine,
    )

  ids, lengths = (
    jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((8, 16), (8,))
  )
  sums = jax.eval_shape(loss, ids, lengths, ids)
  assert (sums.loss.shape, sums.loss.dtype) == ((), jnp.float32)


@pytest.mark.parametrize(
  'name',
  [
    'iwslt14_deen.py:3',
    'opus100.py:de-en',
    'tatoeba_many.py:one',
    'wmt14_ende.py:huge',
    'wmt17_zhen.py:dense',
    'multi30k.py:en-en',
    'multi30k.py:en',
    'multi30k.py:en-c/s',
    'quickstart.py:en',
  ],
)
def test_an_unknown_variant_is_one_line(name):
  with pytest.raises(InputError, match='no variant') as raised:
    _load(name)
  assert '\n' not in str(raised.value)


def test_any_two_languages_of_multi30k():
  config = _load('multi30k.py:en-cs')
  data = config.data
  assert (data.source_language, data.target_language) == ('en', 'cs')
  assert config.name == 'multi30k_encs'


@pytest.mark.parametrize('name', _FILES)
def test_the_header_says_what_a_reader_asks(name):
  text = (_CONFIGS / name).read_text()
  header = text.split('"""')[1]
  for word in ('Paper', 'Data', 'Command'):
    assert f'\n{word}' in header


# The directions of the two papers: four languages with English both ways, and
# 94 both ways.
@pytest.mark.parametrize(
  ('name', 'count', 'into_english'),
  [
    ('iwslt17_multi.py', 8, 4),
    ('opus100.py', 188, 94),
    ('tatoeba_many.py', 10, 5),
    ('tatoeba_many.py:many_to_one', 5, 5),
    ('tatoeba_many.py:one_to_many', 5, 0),
  ],
)
def test_the_directions_of_a_config(name, count, into_english):
  data = _load(name).data
  names = {each.name for each in data.directions}
  assert len(names) == len(data.directions) == count
  assert sum(each.endswith('-en') for each in names) == into_english
  assert all(each.valid and each.test for each in data.directions)
  targets = {each.target_language for each in data.directions}
  assert sorted(data.all_tags) == sorted(f'<2{each}>' for each in targets)

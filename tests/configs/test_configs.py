"""Every config builds, has its parameter count recorded, and takes a batch."""

import contextlib
import functools
from pathlib import Path

import by_hand
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

# Parameters by `fusion-jax sizes --config=NAME`.
_WANG = {
  'iwslt14_deen.py:mlrf_base': 13_219_600,
  'iwslt14_deen.py:mlrf_base_4_layers': 15_062_800,
  'iwslt14_deen.py:mlrf_base_6_layers': 18_749_200,
  'iwslt14_deen.py:mlrf_encoder_average': 13_220_112,
  'iwslt14_deen.py:mlrf_encoder_fnn': 13_877_264,
  'iwslt14_deen.py:mlrf_encoder_sa4': 14_143_504,
  'iwslt14_deen.py:mlrf_encoder_sa6': 14_407_696,
  'iwslt14_deen.py:mlrf_decoder_average': 13_220_112,
  'iwslt14_deen.py:mlrf_decoder_fnn': 13_877_264,
  'iwslt14_deen.py:mlrf_decoder_sa4': 14_143_504,
  'iwslt14_deen.py:mlrf_decoder_sa4_per_layer': 14_929_936,
  'iwslt14_deen.py:mlrf_decoder_sa6': 14_407_696,
  'iwslt14_deen.py:mlrf_decoder_sa6_per_hop': 15_718_416,
  'iwslt14_deen.py:mlrf_both_fnn': 14_533_904,
  'iwslt14_deen.py:mlrf_both_sa4': 15_066_384,
  'iwslt14_deen.py:mlrf_fnn_sa': 14_800_144,
  'iwslt14_deen.py:mlrf_encoder_fnn_no_layer_embedding': 13_876_240,
  'iwslt14_deen.py:mlrf_decoder_sa4_no_layer_embedding': 14_142_480,
  'iwslt14_deen.py:mlrf_fnn_sa_no_layer_embedding': 14_799_120,
  'iwslt14_deen.py:mlrf_encoder_fnn_no_word_embedding': 13_746_192,
  'iwslt14_deen.py:mlrf_decoder_sa4_no_word_embedding': 14_143_504,
  'iwslt14_deen.py:mlrf_fnn_sa_no_word_embedding': 14_669_072,
}
_PARAMETERS = {
  'iwslt14_deen.py': 13_219_600,
  **_WANG,
  **{f'{name}_phase2': count for name, count in _WANG.items()},
  'iwslt14_deen.py:pre_norm': 36_665_344,
  'iwslt14_deen.py:post_norm': 36_663_296,
  'iwslt14_deen.py:transparent': 36_664_362,
  'iwslt14_deen.py:mlrf': 40_607_232,
  'iwslt14_deen.py:dlcl': 36_677_730,
  'iwslt14_deen.py:rezero': 36_632_588,
  'iwslt14_deen.py:gtrans': 36_664_331,
  'iwslt14_deen.py:gtrans_no_encoder': 36_663_305,
  'iwslt14_deen.py:gtrans_no_decoder': 36_664_322,
  'iwslt14_deen.py:pre_norm_12_12': 68_208_640,
  'iwslt14_deen.py:post_norm_12_12': 68_206_592,
  'iwslt14_deen.py:transparent_12_12': 68_207_772,
  'iwslt14_deen.py:mlrf_12_12': 73_726_464,
  'iwslt14_deen.py:dlcl_12_12': 68_233_554,
  'iwslt14_deen.py:rezero_12_12': 68_145_176,
  'iwslt14_deen.py:gtrans_12_12': 68_207_638,
  'iwslt14_deen.py:gtrans_no_encoder_12_12': 68_206_610,
  'iwslt14_deen.py:gtrans_no_decoder_12_12': 68_207_620,
  'iwslt14_deen.py:gtrans_24_18': 112_367_651,
  'iwslt14_deen.py:gtrans_no_encoder_24_18': 112_366_619,
  'iwslt14_deen.py:gtrans_no_decoder_24_18': 112_367_624,
  'iwslt14_deen.py:post_norm_24_18': 112_366_592,
  'iwslt14_deen.py:gtrans_36_30': 175_454_265,
  'iwslt14_deen.py:gtrans_no_encoder_36_30': 175_453_229,
  'iwslt14_deen.py:gtrans_no_decoder_36_30': 175_454_220,
  'iwslt14_deen.py:post_norm_36_30': 175_453_184,
  'iwslt14_deen.py:gtrans_60_12': 169_141_284,
  'iwslt14_deen.py:gtrans_6_18': 74_517_530,
  'iwslt17_multi.py': 64_619_531,
  'iwslt17_multi.py:pre_norm': 64_620_544,
  'iwslt17_multi.py:post_norm': 64_618_496,
  'iwslt17_multi.py:transparent': 64_619_562,
  'iwslt17_multi.py:mlrf': 68_562_432,
  'iwslt17_multi.py:dlcl': 64_632_930,
  'iwslt17_multi.py:rezero': 64_587_788,
  'iwslt17_multi.py:gtrans': 64_619_531,
  'iwslt17_multi.py:gtrans_no_encoder': 64_618_505,
  'iwslt17_multi.py:gtrans_no_decoder': 64_619_522,
  'kyoto_jaen.py': 60_524_544,
  'multi30k.py': 7_578_624,
  'multi30k.py:fr-de': 7_578_624,
  'opus100.py': 190_918_669,
  'opus100.py:post_norm': 190_917_120,
  'opus100.py:gtrans': 190_918_669,
  'quickstart.py': 1_182_208,
  'quickstart.py:es-nl': 1_182_208,
  'tatoeba_many.py': 9_626_624,
  'tatoeba_many.py:many_to_many': 9_626_624,
  'tatoeba_many.py:many_to_one': 9_626_624,
  'tatoeba_many.py:one_to_many': 9_626_624,
  'wmt14_ende.py:base': 60_522_496,
  'wmt14_ende.py:dense': 60_522_496,
  'wmt14_ende.py:linear': 75_207_680,
  'wmt14_ende.py:iterative': 92_015_616,
  'wmt14_ende.py:hierarchical': 83_612_672,
  'wmt14_ende.py:multi_layer_2': 94_121_984,
  'wmt14_ende.py:multi_layer_3': 98_317_312,
  'wmt14_ende.py:iterative_diversity': 92_015_616,
  'wmt14_ende.py:hierarchical_diversity': 83_612_672,
  'wmt14_ende.py:multi_layer_2_diversity': 94_121_984,
  'wmt14_ende.py:hierarchical_encoder_diversity': 72_067_584,
  'wmt14_ende.py:hierarchical_decoder_diversity': 72_067_584,
  'wmt14_ende.py:hierarchical_residual_none_diversity': 83_612_672,
  'wmt14_ende.py:hierarchical_residual_top_diversity': 83_612_672,
  'wmt14_ende.py:hierarchical_relu_diversity': 83_612_672,
  'wmt14_ende.py:hierarchical_attention_diversity': 74_696_704,
  'wmt14_ende.py:iterative_encoder_diversity': 76_269_056,
  'wmt14_ende.py:iterative_decoder_diversity': 76_269_056,
  'wmt14_ende.py:iterative_residual_none_diversity': 92_015_616,
  'wmt14_ende.py:iterative_residual_top_diversity': 92_015_616,
  'wmt14_ende.py:iterative_relu_diversity': 92_015_616,
  'wmt14_ende.py:iterative_attention_diversity': 78_903_296,
  'wmt14_ende.py:dynamic_combination': 85_698_560,
  'wmt14_ende.py:dynamic_routing': 98_285_568,
  'wmt14_ende.py:em_routing': 117_205_004,
  'wmt14_ende.py:em_routing_encoder': 88_863_750,
  'wmt14_ende.py:em_routing_decoder': 88_863_750,
  'wmt14_ende.py:em_routing_own_layer': 85_747_724,
  'wmt14_ende.py:big': 209_125_376,
  'wmt14_ende.py:big_hierarchical_diversity': 301_443_072,
  'wmt14_ende.py:big_em_routing': 435_734_540,
  'wmt14_ende.py:emelin_base': 60_487_680,
  'wmt14_ende.py:lexical_shortcuts': 66_791_424,
  'wmt14_ende.py:feature_fusion': 79_374_336,
  'wmt14_ende.py:feature_fusion_cross': 69_931_008,
  'wmt14_ende.py:feature_fusion_both': 88_817_664,
  'wmt14_ende.py:feature_fusion_non_lexical': 79_374_336,
  'wmt14_ende.py:feature_fusion_encoder': 69_931_008,
  'wmt14_ende.py:feature_fusion_decoder': 69_931_008,
  'wmt14_ende.py:small_emelin_base': 19_233_792,
  'wmt14_ende.py:small_lexical_shortcuts': 20_812_800,
  'wmt14_ende.py:small_feature_fusion': 23_958_528,
  'wmt14_ende.py:big_emelin_base': 209_055_744,
  'wmt14_ende.py:big_feature_fusion': 284_577_792,
  'wmt14_ende.py:pre_norm': 217_321_472,
  'wmt14_ende.py:post_norm': 217_317_376,
  'wmt14_ende.py:transparent': 217_319_466,
  'wmt14_ende.py:mlrf': 225_200_128,
  'wmt14_ende.py:dlcl': 217_346_146,
  'wmt14_ende.py:rezero': 217_255_948,
  'wmt14_ende.py:gtrans': 217_319_435,
  'wmt14_ende.py:gtrans_no_encoder': 217_317_385,
  'wmt14_ende.py:gtrans_no_decoder': 217_319_426,
  'wmt14_ende.py:gtrans_12_12': 108_758_032,
  'wmt14_ende.py:gtrans_24_18': 171_810_841,
  'wmt14_ende.py:gtrans_36_30': 260_087_849,
  'wmt14_ende.py:gtrans_60_12': 260_072_472,
  # Pre-norm has 2,048 more, the weights are two squares of 7 x 7.
  'wmt14_ende.py:denseformer': 60_524_642,
  'wmt14_ende.py:denseformer_output': 60_524_642,
  # Two sublayers in six layers and three in six.
  'wmt14_ende.py:skip_gains': 60_524_544 + 30,
  # Two stacks, each of sum_l D K + K C (l + 1) + C (l + 1); four ways have two
  # norms more in five of six layers.
  'wmt14_ende.py:mudd': 60_524_544 + 134_518,
  # The sum after layer 6, 512 x 28 + 28 x 7 + 7, is replaced by those of two
  # memories of six layers, C = 12: 512 x 84 + 84 x 84 + 84.
  'wmt14_ende.py:mudd_memory': 60_524_544 + 134_518 - 14_539 + 50_148,
  'wmt14_ende.py:mudd_one_way': 60_524_544 + 49_778,
  # Two stacks of seven sums, of 1 to 7 outputs: 28 weights, or 28 vectors, and
  # seven directions. With three ways 3 (21 + 6) + 7 + 1 vectors, and 12 norms
  # of keys and values; of the last two, at most 4 outputs: 3 (18 + 6) + 4 + 1.
  'wmt14_ende.py:grn_v1': 60_524_544 + 2 * 28,
  'wmt14_ende.py:grn_v2': 60_524_544 + 2 * 28 * 512,
  'wmt14_ende.py:grn_v3': 60_524_544 + 2 * 35 * 512,
  'wmt14_ende.py:deep_cross_attention': 60_524_544 + 2 * (89 + 24) * 512,
  'wmt14_ende.py:deep_cross_attention_last_2': 60_524_544 + 2 * (77 + 24) * 512,
  # Queries and scales, 2 x 512: 11 of 12 sublayers, 17 of 18, two last reads;
  # by layer 5 of 6 in each. Delta: 10, 16, no last read, 11 and 17 gates.
  'wmt14_ende.py:attention_residuals': 60_524_544 + 30_720,
  'wmt14_ende.py:attention_residuals_block': 60_524_544 + 30_720,
  'wmt14_ende.py:attention_residuals_heads': 60_524_544 + 30_720,
  'wmt14_ende.py:attention_residuals_layer': 60_524_544 + 12_288,
  'wmt14_ende.py:attention_residuals_delta': 60_524_544 + 26_652,
  # Nothing but other sums and other initial weights.
  'wmt14_ende.py:b2t': 60_522_496,
  'wmt14_ende.py:deepnorm': 60_522_496,
  # An attention, 4 (512^2 + 512), and a gate, 2 x 512 + 1.
  'wmt14_ende.py:surface_fusion': 60_522_496 + 1_050_624,
  'wmt14_ende.py:surface_fusion_soft': 60_522_496 + 1_050_624,
  'wmt14_ende.py:surface_fusion_learned': 60_522_496 + 1_051_649,
  # Two weights in five layers of each stack.
  'wmt14_ende.py:value_residual': 60_522_496 + 20,
  # No projection of values, 512 x 512 + 512, in ten layers.
  'wmt14_ende.py:value_residual_shared': 60_522_496 - 2_626_560,
  # 30 sublayers, each with 24 numbers, 24 + 3,072 + 2, 16,394 and 49,179.
  'wmt14_ende.py:hyper_connections': 60_524_544 + 92_940,
  'wmt14_ende.py:hyper_connections_static': 60_524_544 + 720,
  'wmt14_ende.py:hyper_connections_identity_mix': 60_524_544 + 491_820,
  'wmt14_ende.py:hyper_connections_manifold': 60_524_544 + 1_475_370,
  # 7 x 6 x 512 weights, and a norm.
  'wmt14_ende.py:transparent_by_feature': 60_545_024,
  'wmt17_zhen.py:base': 76_906_496,
  'wmt17_zhen.py:hierarchical_diversity': 99_996_672,
  'wmt17_zhen.py:em_routing': 133_589_004,
  'wmt17_zhen.py:big': 241_893_376,
  'wmt17_zhen.py:big_hierarchical_diversity': 334_211_072,
  'wmt17_zhen.py:big_em_routing': 468_502_540,
}

# Without fusion.
_BASELINES = (
  'iwslt14_deen.py',
  'iwslt17_multi.py:post_norm',
  'kyoto_jaen.py',
  'multi30k.py',
  'multi30k.py:fr-de',
  'opus100.py:post_norm',
  'quickstart.py',
  'quickstart.py:es-nl',
  'tatoeba_many.py',
  'wmt14_ende.py:base',
  'wmt14_ende.py:big',
  'wmt17_zhen.py:base',
  'wmt17_zhen.py:big',
)

# What fusion adds to the baseline of the file, as printed. Dou et al. (2018),
# Table 1, and in big the difference of two rows of Table 2; Dou et al. (2019),
# likewise. Their Table 1 has +56.8M for EM routing and their Table 2 226M for
# big, which their equations give within 0.3%.
_ADDED = {
  'wmt14_ende.py:dense': '0.0M',
  'wmt14_ende.py:linear': '14.7M',
  'wmt14_ende.py:iterative': '31.5M',
  'wmt14_ende.py:iterative_diversity': '31.5M',
  'wmt14_ende.py:hierarchical': '23.1M',
  'wmt14_ende.py:hierarchical_diversity': '23.1M',
  'wmt14_ende.py:multi_layer_2': '33.6M',
  'wmt14_ende.py:multi_layer_2_diversity': '33.6M',
  'wmt14_ende.py:multi_layer_3': '37.8M',
  'wmt14_ende.py:dynamic_combination': '25.2M',
  'wmt14_ende.py:dynamic_routing': '37.8M',
  'wmt14_ende.py:em_routing': '56.7M',
  'wmt14_ende.py:big_hierarchical_diversity': '92M',
  'wmt14_ende.py:big_em_routing': '227M',
  'wmt17_zhen.py:hierarchical_diversity': '23M',
  'wmt17_zhen.py:big_hierarchical_diversity': '92M',
}

# All parameters, as printed, with the vocabularies of the paper.
_ALL = {
  # Wang et al. (2018), Table 2: 8,389 and 6,428 subwords.
  (8_389, 6_428): {
    'iwslt14_deen.py:mlrf_base': '10.97M',
    'iwslt14_deen.py:mlrf_base_4_layers': '12.82M',
    'iwslt14_deen.py:mlrf_base_6_layers': '16.50M',
    'iwslt14_deen.py:mlrf_encoder_average': '10.97M',
    'iwslt14_deen.py:mlrf_encoder_fnn': '11.63M',
    'iwslt14_deen.py:mlrf_encoder_sa4': '11.90M',
    'iwslt14_deen.py:mlrf_encoder_sa6': '12.16M',
    'iwslt14_deen.py:mlrf_decoder_average': '10.97M',
    'iwslt14_deen.py:mlrf_decoder_fnn': '11.63M',
    'iwslt14_deen.py:mlrf_decoder_sa4': '11.90M',
    'iwslt14_deen.py:mlrf_decoder_sa6_per_hop': '13.47M',
    'iwslt14_deen.py:mlrf_both_fnn': '12.29M',
    'iwslt14_deen.py:mlrf_both_sa4': '12.82M',
    'iwslt14_deen.py:mlrf_fnn_sa': '12.55M',
  },
  # Emelin et al. (2019), Table 5: the one size that fits all its rows.
  (41_138, 41_138): {
    'wmt14_ende.py:emelin_base': '65,166K',
    'wmt14_ende.py:lexical_shortcuts': '71,470K',
    'wmt14_ende.py:feature_fusion': '84,053K',
    'wmt14_ende.py:feature_fusion_non_lexical': '84,053K',
    'wmt14_ende.py:big_emelin_base': '218,413K',
    'wmt14_ende.py:big_feature_fusion': '293,935K',
  },
  # Yang et al. (2022), Table 7: a size that fits.
  (9_800, 9_800): {
    'iwslt14_deen.py:post_norm_12_12': '68.1M',
    'iwslt14_deen.py:gtrans_12_12': '68.1M',
  },
}


def _model(model: ModelConfig, size: int) -> Transformer:
  return Transformer(model, size, size, 2)


@functools.cache
def _count(model: ModelConfig, size: int) -> int:
  """Layers that are alike are traced once: a quarter of the time."""
  with contextlib.suppress(InputError):
    model = changed(model, {'scan_layers': True})
  fresh = functools.partial(initial_parameters, _model(model, size), 0)
  shapes = jax.eval_shape(fresh)
  return sum(x.size for x in jax.tree.leaves(shapes))


def _as_printed(count: int, printed: str) -> str:
  """The count to as many places as what is printed."""
  unit = {'M': 1e6, 'K': 1e3}[printed[-1]]
  places = len(printed[:-1].partition('.')[2])
  return f'{count / unit:,.{places}f}{printed[-1]}'


def test_no_config_is_missing():
  files = {path.name for path in _CONFIGS.glob('*.py')}
  assert files == {name.partition(':')[0] for name in _PARAMETERS}


@pytest.mark.parametrize(
  'file',
  [
    'iwslt14_deen.py',
    'iwslt17_multi.py',
    'opus100.py',
    'tatoeba_many.py',
    'wmt14_ende.py',
    'wmt17_zhen.py',
  ],
)
def test_no_variant_is_missing(file):
  with pytest.raises(InputError, match="no variant 'x'; there are ") as raised:
    load_config(str(_CONFIGS / f'{file}:x'))
  variants = str(raised.value).rpartition('there are ')[2].split(', ')
  recorded = [name.partition(':')[2] for name in _PARAMETERS if file in name]
  assert variants == [variant for variant in recorded if variant]


@pytest.mark.parametrize(
  'name', extended_but(list(_PARAMETERS)[::4], list(_PARAMETERS)[::16])
)
def test_parameter_count(name):
  config = load_config(str(_CONFIGS / name))
  size = config.data.tokenizer.vocabulary_size
  assert _PARAMETERS[name] == by_hand.count(config.model, size, size)
  assert _PARAMETERS[name] == _count(config.model, size)


def test_the_second_phase_is_that_of_wang():
  """Their section 4.1: 5e-5 and 32 sentences where there were 80."""
  names = ('mlrf_fnn_sa', 'mlrf_fnn_sa_phase2')
  first, second = (
    load_config(str(_CONFIGS / f'iwslt14_deen.py:{name}')) for name in names
  )
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


@pytest.mark.parametrize('name', _ADDED)
def test_what_fusion_adds_is_what_the_paper_has(name):
  big = name.partition(':')[2].startswith('big')
  base = f'{name.partition(":")[0]}:{"big" if big else "base"}'
  added = _PARAMETERS[name] - _PARAMETERS[base]
  assert _as_printed(added, _ADDED[name]) == _ADDED[name]


@pytest.mark.parametrize(
  ('name', 'vocabularies', 'printed'),
  [
    (name, vocabularies, printed)
    for vocabularies, rows in _ALL.items()
    for name, printed in rows.items()
  ],
)
def test_the_size_is_what_the_paper_has(name, vocabularies, printed):
  """The sizes of Wang et al. fit norms without scale and offset.

  With both, two of the rows are at most 300 parameters past the rounding.
  """
  model = load_config(str(_CONFIGS / name)).model
  plain = {
    f'{side}.options.norm': 'plain'
    for side in ('encoder', 'decoder')
    if model.side(side).fusion in ('average', 'feed_forward', 'hops')
  }
  count = by_hand.count(changed(model, plain), *vocabularies)
  assert _as_printed(count, printed) == printed


@pytest.mark.parametrize(
  'name',
  extended_but(
    [*_BASELINES, 'iwslt14_deen.py:gtrans'], ['iwslt14_deen.py:gtrans']
  ),
)
def test_a_batch_has_a_loss(name):
  config = load_config(str(_CONFIGS / name))
  model = _model(config.model, config.data.tokenizer.vocabulary_size)

  def loss(source, lengths, target):
    parameters = initial_parameters(model, 0)
    output = model.apply({'params': parameters}, source, lengths, target)
    return cross_entropy(
      output.features,
      output.output,
      target,
      lengths,
      0.1,
      64,
      output.log_weights,
      config.model.decoder.combine,
    )

  ids, lengths = (
    jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((8, 16), (8,))
  )
  sums = jax.eval_shape(loss, ids, lengths, ids)
  assert sums.loss.shape == ()
  assert sums.loss.dtype == jnp.float32


@pytest.mark.parametrize('name', _PARAMETERS)
def test_the_saved_form_reads_back(name):
  config = load_config(str(_CONFIGS / name))
  assert from_dict(to_dict(config)) == config


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
    load_config(str(_CONFIGS / name))
  assert '\n' not in str(raised.value)


def test_any_two_languages_of_multi30k():
  config = load_config(str(_CONFIGS / 'multi30k.py:en-cs'))
  data = config.data
  assert (data.source_language, data.target_language) == ('en', 'cs')
  assert config.name == 'multi30k_encs'


@pytest.mark.parametrize(
  'name', sorted({name.partition(':')[0] for name in _BASELINES})
)
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
  data = load_config(str(_CONFIGS / name)).data
  names = {each.name for each in data.directions}
  assert len(names) == len(data.directions) == count
  assert sum(each.endswith('-en') for each in names) == into_english
  assert all(each.valid and each.test for each in data.directions)
  targets = {each.target_language for each in data.directions}
  assert sorted(data.all_tags) == sorted(f'<2{each}>' for each in targets)

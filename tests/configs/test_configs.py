"""Every config builds, has its parameter count recorded, and takes a batch."""

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from fusion_jax.errors import InputError
from fusion_jax.flags import load_config
from fusion_jax.losses import cross_entropy
from fusion_jax.models.transformer import Transformer, initial_parameters
from fusion_jax.serialization import from_dict, to_dict

_CONFIGS = Path(__file__).parents[2] / 'configs'

# Parameters by `python -m fusion_jax.models --config=configs/NAME`. Each is
# tables + encoder layers + decoder layers (+ final norms), by hand:
#   encoder layer 4 (D^2 + D) + 2 D F + F + D + 4 D, decoder layer
#   8 (D^2 + D) + 2 D F + F + D + 6 D.
_PARAMETERS = {
  'iwslt14_deen.py': 13_219_600,
  'kyoto_jaen.py': 60_524_544,
  'multi30k.py': 7_578_624,
  'multi30k.py:fr-de': 7_578_624,
  'quickstart.py': 1_182_208,
  'quickstart.py:es-nl': 1_182_208,
  'wmt14_ende.py:base': 60_522_496,
  'wmt14_ende.py:big': 209_125_376,
  'wmt17_zhen.py:base': 76_906_496,
  'wmt17_zhen.py:big': 241_893_376,
}


def _by_hand(config) -> int:
  """The same count from the formula above."""
  m, size = config.model, config.data.tokenizer.vocabulary_size
  width = m.width
  feed_forward = 2 * width * m.filter + m.filter + width
  attention = 4 * (width * width + width)
  tables = {'all': 1, 'target_output': 2, 'source_target': 2, 'none': 3}
  return (
    tables[m.tied_embeddings] * size * width
    + (size if m.output_bias else 0)
    + m.encoder_layers * (attention + feed_forward + 4 * width)
    + m.decoder_layers * (2 * attention + feed_forward + 6 * width)
    + (4 * width if m.norm == 'pre' else 0)
  )


def _model(config) -> Transformer:
  size = config.data.tokenizer.vocabulary_size
  return Transformer(config.model, size, size, 2)


def test_no_config_is_missing():
  files = {path.name for path in _CONFIGS.glob('*.py')}
  assert files == {name.partition(':')[0] for name in _PARAMETERS}


@pytest.mark.parametrize('name', _PARAMETERS)
def test_parameter_count(name):
  config = load_config(str(_CONFIGS / name))
  model = _model(config)
  shapes = jax.eval_shape(lambda: initial_parameters(model, 0))
  count = sum(x.size for x in jax.tree.leaves(shapes))
  assert count == _PARAMETERS[name] == _by_hand(config)


@pytest.mark.parametrize('name', _PARAMETERS)
def test_a_batch_has_a_loss(name):
  config = load_config(str(_CONFIGS / name))
  model = _model(config)

  def loss(source, lengths, target):
    parameters = initial_parameters(model, 0)
    output = model.apply({'params': parameters}, source, lengths, target)
    return cross_entropy(
      output.features, output.output, target, lengths, 0.1, 64
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
  'name', ['wmt14_ende.py:huge', 'multi30k.py:en-en', 'quickstart.py:en']
)
def test_an_unknown_variant_is_one_line(name):
  with pytest.raises(InputError, match='no variant'):
    load_config(str(_CONFIGS / name))


@pytest.mark.parametrize('name', _PARAMETERS)
def test_the_header_says_what_a_reader_asks(name):
  text = (_CONFIGS / name.partition(':')[0]).read_text()
  header = text.split('"""')[1]
  for word in ('Paper', 'Data', 'Command'):
    assert f'\n{word}' in header

"""Cosines of layers over a text, against one padded pass and by hand."""

import jax.numpy as jnp
import numpy as np
import pytest
from fused_runs import all_at_once, fused_run, make_run

from fusion_jax.analysis.similarity import cosine_sums
from fusion_jax.analysis.views import VIEWS
from fusion_jax.config import SideConfig
from fusion_jax.testing import assert_close

VIEW = VIEWS['similarity']


def test_cosines_by_hand():
  # Positions (1, 0), (0, 2) and one that does not count.
  first = jnp.array([[[1.0, 0.0], [0.0, 2.0], [5.0, 5.0]]])
  # Cosines with them: 0.6 and -1.
  second = jnp.array([[[3.0, 4.0], [0.0, -7.0], [5.0, 5.0]]])
  tokens = jnp.array([[True, True, False]])
  sums = cosine_sums(jnp.stack([first, second]), tokens)
  assert_close(sums, np.array([[2, -0.4], [-0.4, 2]]))


def _mean_cosines(layers, inside):
  states = np.stack([np.asarray(layer)[inside] for layer in layers])
  units = states / np.linalg.norm(states, axis=-1, keepdims=True)
  return np.einsum('itd,jtd->ij', units, units) / inside.sum()


@pytest.mark.extended
def test_the_text_in_batches_gives_what_one_batch_gives(tmp_path):
  analysed = fused_run(make_run(), tmp_path)
  found = VIEW.measure(analysed)
  source, source_lengths, target, target_lengths = all_at_once(analysed)
  output = analysed.run.model.apply(
    {'params': analysed.run.parameters},
    *map(jnp.asarray, (source, source_lengths, target)),
  )
  places = np.arange(source.shape[1])
  no_end = places < source_lengths[:, None] - 1
  places = np.arange(target.shape[1])
  no_start = (places > 0) & (places < target_lengths[:, None])
  for side, layers, features, inside in (
    ('encoder', output.encoder_layers, output.encoder_features, no_end),
    ('decoder', output.decoder_layers, output.features, no_start),
  ):
    expected = _mean_cosines((*layers, features), inside)[:, :-1]
    np.testing.assert_allclose(found[side]['cosine'], expected[:-1], atol=1e-5)
    np.testing.assert_allclose(found[side]['output'], expected[-1:], atol=1e-5)
    assert found[side]['positions'] == inside.sum()


def test_an_output_is_like_the_layer_that_it_takes(tmp_path):
  run = make_run(
    # Layer 1 of the decoder reads H[1], layer 2 reads H[2].
    {'encoder/read_out/weights': 99 * np.array([[0, 0], [1, 0], [0, 1]])},
    norm='post',
    encoder=SideConfig(fusion='transparent'),
    decoder=SideConfig('gtrans', {'group_size': 1, 'mode': 'last'}),
  )
  found = VIEW.measure(fused_run(run, tmp_path))
  for side in 'encoder', 'decoder':
    layers = found[side]['cosine']
    np.testing.assert_allclose(found[side]['output'], layers[1:], atol=1e-5)
  axes = VIEW.draw(found).axes
  scales = [panel.images[0].get_clim() for panel in axes[:2]]
  assert scales[0] == scales[1]
  names = [tick.get_text() for tick in axes[0].get_yticklabels()]
  assert names == ['0', '1', '2', 'out 1', 'out 2']

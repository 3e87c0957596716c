"""The program that imports: files that it refuses, and training from a run."""

import dataclasses
import os

import jax
import numpy as np
import pytest
from recorded import (
  FAIRSEQ,
  MARIAN,
  copied,
  import_model,
  log_probabilities,
  recorded,
)
from tiers import extended_but

from fusion_jax.config.flags import load_config
from fusion_jax.config.fusion import SideConfig
from fusion_jax.models.transformer import initial_parameters
from fusion_jax.runs.loading import load_run, make_model
from fusion_jax.training.warm_start import read_baseline, with_baseline


@pytest.mark.parametrize(
  ('kind', 'name'),
  [('marian', 'added_tokens.json'), ('fairseq', 'joint.model')],
)
def test_a_pipe_is_refused_at_once(tmp_path, capsys, kind, name):
  folder = copied(MARIAN if kind == 'marian' else FAIRSEQ, tmp_path)
  (folder / name).unlink(missing_ok=True)
  os.mkfifo(folder / name)
  spm = folder / 'joint.model'
  flags = [f'--source_spm={spm}'] if kind == 'fairseq' else []
  assert import_model(kind, folder, tmp_path / 'run', *flags) == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert f'{folder / name}: is a folder, a pipe or a device' in line


def test_flags_of_fairseq_are_refused(tmp_path, capsys):
  assert import_model('marian', MARIAN, tmp_path, '--source_spm=a') == 2
  assert 'need --from=fairseq' in capsys.readouterr().err


_SCHEMES = ['dlcl', 'transparent', 'dynamic_routing']


@pytest.mark.parametrize('fusion', extended_but(_SCHEMES, ['dlcl']))
def test_the_first_loss_is_that_of_the_imported_model(marian_run, fusion):
  plain = load_run(marian_run)
  side = SideConfig(fusion=fusion, start='baseline')
  sides = {'encoder': side}
  if fusion != 'transparent':
    sides['decoder'] = side
  config = load_config(str(marian_run / 'config.json'))
  config = dataclasses.replace(
    config, model=dataclasses.replace(config.model, **sides)
  )
  tokenizers = plain.source_tokenizer, plain.target_tokenizer
  model = make_model(config, *tokenizers)
  fresh = initial_parameters(model, 0)
  baseline = read_baseline(fresh, model, tokenizers, marian_run)
  parameters = with_baseline(fresh, model, baseline)
  assert len(jax.tree.leaves(parameters)) > len(
    jax.tree.leaves(plain.parameters)
  )
  fused = dataclasses.replace(plain, model=model, parameters=parameters)
  expected = recorded(MARIAN)
  pairs = expected['source'], expected['beam']
  np.testing.assert_allclose(
    log_probabilities(fused, *pairs),
    log_probabilities(plain, *pairs),
    atol=1e-5,
  )

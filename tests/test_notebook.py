"""The notebook of the documentation runs as it is written, but shorter."""

import json
from pathlib import Path

import pytest

_NOTEBOOK = Path(__file__).parents[1] / 'docs' / 'tutorial.ipynb'
_SHORTER = {
  "'name': 'mine'": "'name': 'mine', 'data.batch.shapes': 1, 'model.width': 32",
  'STEPS = 400': 'STEPS = 4',
  'PAIRS = 50_000': 'PAIRS = 6_000',
  "('valid', 500), ('test', 200)": "('valid', 20), ('test', 20)",
}


@pytest.mark.extended
@pytest.mark.filterwarnings('default')
def test_every_cell_runs(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  cells = json.loads(_NOTEBOOK.read_text())['cells']
  code = '\n'.join(
    ''.join(cell['source']) for cell in cells if cell['cell_type'] == 'code'
  )
  for long, short in _SHORTER.items():
    assert long in code
    code = code.replace(long, short)
  exec(compile(code, str(_NOTEBOOK), 'exec'), {})
  out = capsys.readouterr().out
  assert "got 'hop'; did you mean 'hops'?" in out
  assert 'fused: BLEU = ' in out
  assert 'log p = -' in out

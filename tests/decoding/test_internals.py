"""Views of a model, against its own pass, and the files they are written to."""

import dataclasses
import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from copying import LINES, make_tokenizer, random_run

from fusion_jax.cli import decode as decode_program
from fusion_jax.cli import run as run_module
from fusion_jax.cli.line_formats import ViewFlags
from fusion_jax.config import DecodingConfig
from fusion_jax.decoding.sentences import PairReader
from fusion_jax.decoding.views import InternalsSelection, Viewer
from fusion_jax.errors import InputError
from fusion_jax.layers.sow import cross_attention_weights
from fusion_jax.testing import assert_close

OPTIONS = DecodingConfig(
  beam_size=1, max_source_length=32, batch_tokens=256, max_length_extra=3
)
EVERYTHING = InternalsSelection(layers='all', heads='all', states=True)
SOURCES = 'the cat sat\n\na dog and a cat\n'
TARGETS = 'a cat\n\nthe dog\n'
# An encoder of 1 layer and a decoder of 2, of width 16 and 2 heads.
LAYERS, HEADS, WIDTH = 2, 2, 16


@pytest.fixture(scope='module')
def run():
  made = random_run(make_tokenizer(), 5, layers=LAYERS)
  config = dataclasses.replace(made.config, decoding=OPTIONS)
  return dataclasses.replace(made, config=config)


@pytest.fixture(scope='module')
def lines(run):
  """Lines of one pair, of two, and of none."""
  encoder = PairReader(run, OPTIONS)
  texts = zip(LINES, LINES[::-1], strict=True)
  pairs = [encoder.encode('', *each) for each in texts]
  return [pairs[:1], [], pairs[2:4], *([pair] for pair in pairs[4:])]


def _views(run, lines, selection=EVERYTHING, **options):
  viewer = Viewer(run, dataclasses.replace(OPTIONS, **options), selection)
  numbers, views = zip(*viewer.view(enumerate(lines)), strict=True)
  assert numbers == tuple(range(len(lines)))
  return views


@pytest.fixture(scope='module')
def views(run, lines):
  return _views(run, lines)


@functools.partial(jax.jit, static_argnames='model')
def _pass(parameters, source, target, *, model):
  length = jnp.full(1, source.shape[1])
  output, kept = model.apply(
    {'params': parameters}, source, length, target, mutable=['attention']
  )
  weights = cross_attention_weights(kept['attention'])
  return weights, output.encoder_layers, output.decoder_layers


def test_views_are_those_of_a_pass_over_the_pair_alone(run, lines, views):
  for index in (0, 2, 3):
    pair, view = lines[index][0], views[index][0]
    ids = (jnp.array([side]) for side in pair)
    expected = _pass(run.parameters, *ids, model=run.model)
    assert view.pair == pair
    for seen, stacked in zip(
      view.internals, map(np.stack, expected), strict=True
    ):
      assert seen.dtype == np.float32
      assert_close(seen, stacked[:, 0])


def test_views_do_not_depend_on_the_batch(run, lines, views):
  for pairs, viewed in zip(lines, views, strict=True):
    assert [view.pair for view in viewed] == pairs
  small = _views(run, lines, batch_tokens=32)
  assert_close(views, small)


@pytest.mark.parametrize(
  ('layers', 'heads', 'choose'),
  [
    ('mean', 'mean', lambda weights: weights.mean((0, 1))),
    ('last', 'all', lambda weights: weights[1]),
    ('all', 2, lambda weights: weights[:, 1]),
    (1, 'mean', lambda weights: weights[0].mean(0)),
  ],
)
def test_layers_and_heads_are_chosen(run, lines, views, layers, heads, choose):
  ((view,),) = _views(
    run, lines[:1], InternalsSelection(layers=layers, heads=heads)
  )
  expected = choose(views[0][0].internals.attention)
  assert_close(view.internals.attention, expected, units=16)
  assert view.internals[1:] == (None, None)


@pytest.mark.parametrize(
  ('flag', 'message'),
  [
    ({'layers': 3}, '--attention_layers=3: the decoder has 2 layers, counted'),
    ({'heads': 0}, '--attention_heads=0: the decoder has 2 heads, counted'),
  ],
)
def test_a_layer_that_is_not_there_is_named(run, flag, message):
  with pytest.raises(InputError, match=message):
    Viewer(run, OPTIONS, InternalsSelection(**flag))


@pytest.fixture
def decode(run, monkeypatch, tmp_path):
  """Writes views of SOURCES, with TARGETS or translated."""
  monkeypatch.setattr(run_module, 'load_run', lambda *_: run)
  monkeypatch.chdir(tmp_path)
  Path('source').write_text(SOURCES)
  Path('target').write_text(TARGETS)

  def decode(mode, views, **fields):
    if mode == 'score':
      fields = {'target': 'target'} | fields
    fields = {'input': 'source', 'output': 'out', 'workdir': 'run'} | fields
    request = run_module.DecodeRequest(
      mode=mode, views=ViewFlags(**views), **fields
    )
    run_module.run(request)

  return decode


def _records(path):
  return [json.loads(line) for line in Path(path).read_text().splitlines()]


def test_weights_of_given_translations(decode, run):
  decode('score', {'attention_output': 'weights.jsonl'})
  records = _records('weights.jsonl')
  assert [record['index'] for record in records] == [0, 1, 2]
  assert records[1] == {'index': 1, 'source': [], 'target': [], 'attention': []}
  end = run.target_tokenizer.pieces([run.target_tokenizer.vocabulary.end])
  for side, text in (('source', SOURCES), ('target', TARGETS)):
    line = text.splitlines()[2]
    pieces = records[2][side]
    assert pieces[-1:] == end
    assert ''.join(pieces[:-1]).replace('▁', ' ').strip() == line
  for record in (records[0], records[2]):
    weights = np.array(record['attention'])
    assert weights.shape == (len(record['target']), len(record['source']))
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
    assert (np.round(weights, 6) == weights).all()
  assert len(Path('out').read_text().splitlines()) == 3


@pytest.mark.parametrize('unit', ['piece', 'word'])
def test_alignments_of_given_translations(decode, unit):
  decode('score', {'attention_output': 'a.pharaoh', 'alignment_unit': unit})
  lines = Path('a.pharaoh').read_text().splitlines()
  decode('score', {'attention_output': 'weights.jsonl'})
  assert lines[1] == ''
  for line, record in zip(lines, _records('weights.jsonl'), strict=True):
    if not record['source']:
      continue
    inner = np.array(record['attention'])[:-1, :-1]
    links = [f'{i}-{j}' for j, i in enumerate(inner.argmax(1))]
    if unit != 'word':
      assert line.split() == links
      continue
    words = {int(link.split('-')[1]) for link in line.split()}
    assert words == set(range(''.join(record['target']).count('▁')))


@pytest.mark.extended
def test_states_of_given_translations(decode, run):
  decode('score', {'states_output': 'states.npz'})
  encoder = PairReader(run, OPTIONS)
  texts = list(zip(SOURCES.splitlines(), TARGETS.splitlines(), strict=True))
  expected = _views(run, [encoder.line(1, *each) for each in texts])
  with np.load('states.npz') as states:
    names = {'encoder', 'decoder', 'source', 'target'}
    assert set(states) == {f'{name}_{i}' for name in names for i in range(3)}
    assert states['encoder_1'].shape == (2, 0, WIDTH)
    assert states['decoder_1'].shape == (3, 0, WIDTH)
    assert states['source_1'].shape == states['target_1'].shape == (0,)
    for index in (0, 2):
      (view,) = expected[index]
      for name, array in zip(
        ('encoder', 'decoder', 'source', 'target'),
        (*view.internals[1:], *view.pair),
        strict=True,
      ):
        assert_close(states[f'{name}_{index}'], array)
    assert states['encoder_0'].dtype == np.float32


def test_views_of_the_translations_that_are_made(decode, run):
  views = {'attention_output': 'weights.jsonl', 'states_output': 'states.npz'}
  decode('translate', views)
  translations = Path('out').read_text().split('\n')
  records, tokenizer = _records('weights.jsonl'), run.target_tokenizer
  assert records[1]['target'] == []
  assert translations[1] == ''
  with np.load('states.npz') as states:
    for index in (0, 2):
      record, ids = records[index], states[f'target_{index}']
      assert ids[-1] == tokenizer.vocabulary.end
      assert tokenizer.decode(ids[:-1]) == translations[index]
      assert record['target'] == tokenizer.pieces(ids.tolist())
      size = np.array(record['attention']).shape
      assert size == (len(record['target']), len(record['source']))
      assert states[f'decoder_{index}'].shape == (3, len(ids), WIDTH)


@pytest.mark.extended
def test_a_line_in_pieces_has_them_one_after_the_other(decode, run):
  # Translations of up to 2 * 4 + 3 subwords, of pieces of up to 4.
  options = {'max_source_length': 4}
  decode('translate', {'attention_output': 'w.jsonl'}, options=options)
  record = _records('w.jsonl')[2]
  decode('translate', {'attention_output': 'a.align'}, options=options)
  links = Path('a.align').read_text().splitlines()[2].split()
  end = run.target_tokenizer.pieces([run.target_tokenizer.vocabulary.end])[0]
  sizes = [_sizes(record[side], end) for side in ('source', 'target')]
  assert len(sizes[0]) == len(sizes[1]) > 1
  assert max(sizes[0]) <= 4 < max(sizes[1])
  weights = np.array(record['attention'])
  expected, row, column = [], 0, 0
  for part, (columns, rows) in enumerate(zip(*sizes, strict=True)):
    block = weights[row : row + rows, column : column + columns]
    np.testing.assert_allclose(block.sum(-1), 1, atol=1e-5)
    expected += [
      # The end symbols of the earlier parts have no number.
      f'{column - part + i}-{row - part + j}'
      for j, i in enumerate(block[:-1, :-1].argmax(1))
    ]
    row, column = row + rows, column + columns
  # Rows sum to 1 within the blocks, so there is nothing outside of them.
  assert weights.sum() == pytest.approx(len(weights), abs=1e-4)
  assert links == expected


def _sizes(pieces, end):
  ends = [place + 1 for place, piece in enumerate(pieces) if piece == end]
  return np.diff([0, *ends]).tolist()


def test_the_program_hands_its_flags_on(decode):
  flags = {'attention_output': 'own.align', 'attention_layers': 'last'}
  decode('score', flags | {'attention_heads': 2, 'alignment_unit': 'word'})
  files = '--mode=score --input=source --target=target --output=out'
  views = '--attention_output=a.align --attention_layers=last'
  more = '--attention_heads=2 --alignment_unit=word --states_output=s.npz'
  assert (
    decode_program.main(f'--workdir=run {files} {views} {more}'.split()) == 0
  )
  assert Path('a.align').read_text() == Path('own.align').read_text() != ''
  assert Path('s.npz').exists()


@pytest.mark.parametrize(
  ('mode', 'fields', 'message'),
  [
    (
      'score',
      {'options': {'max_source_length': 4}},
      'line 3: its source has 6 subwords, more than max_source_len',
    ),
    ('score', {'target': 'short'}, 'short: 1 lines, fewer than source'),
    ('translate', {'workdir': 'a,b'}, '--attention_output: takes one run'),
    (
      'translate',
      {'output': 'w.jsonl'},
      '--output=w.jsonl: is the same file as --attention_output=w.jsonl',
    ),
  ],
)
def test_what_goes_wrong_leaves_no_file(decode, mode, fields, message):
  Path('short').write_text('a\n')
  before = sorted(Path().iterdir())
  views = {'attention_output': 'w.jsonl', 'states_output': 's.npz'}
  with pytest.raises(InputError, match=message):
    decode(mode, views, **fields)
  assert sorted(Path().iterdir()) == before


@pytest.mark.parametrize('flag', ['attention_output', 'states_output'])
def test_a_file_that_cannot_be_written_is_named(decode, flag):
  path = {'attention_output': 'none/w.jsonl', 'states_output': 'none/s.npz'}
  with pytest.raises(InputError, match=f'{path[flag]}: cannot be written'):
    decode('score', {flag: path[flag]})
  assert not Path('out').exists()


@pytest.mark.parametrize(
  ('flags', 'message'),
  [
    ({'attention_output': 'a.txt'}, 'a.txt: must end in .jsonl or .pharaoh'),
    ({'states_output': 's.npy'}, 's.npy: must end in .npz'),
    ({'attention_layers': 'all'}, '--attention_layers=all, --attention_he'),
  ],
)
def test_wrong_flags_are_told_in_one_line(flags, message):
  if 'states_output' not in flags:
    flags = {'attention_output': 'a.pharaoh'} | flags
  with pytest.raises(InputError) as error:
    ViewFlags(**flags)
  assert message in str(error.value)
  assert '\n' not in str(error.value)

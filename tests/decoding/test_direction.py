"""Runs of several directions, and the one they translate in."""

import dataclasses
import logging
import runpy
from pathlib import Path

import numpy as np
import pytest
from copying import LINES, Copying, make_run, random_run

from fusion_jax.cli import decode as decode_program
from fusion_jax.cli import request as request_module
from fusion_jax.cli.view_writers import alignment_file
from fusion_jax.config import (
  DataConfig,
  DecodingConfig,
  Direction,
  TokenizerConfig,
)
from fusion_jax.data.tokenizer import Tokenizer, train
from fusion_jax.decoding.direction import in_direction
from fusion_jax.decoding.pairs import PairIds
from fusion_jax.decoding.score import Scorer
from fusion_jax.decoding.translate import Translator
from fusion_jax.decoding.views import Internals, View
from fusion_jax.errors import InputError
from fusion_jax.tools.export import stablehlo
from fusion_jax.tools.export.stablehlo_options import StablehloOptions

PAIRS = [('de', 'en'), ('en', 'de'), ('en', 'fr'), ('ro', 'en')]
DATA = DataConfig(
  directions=tuple(Direction(*pair, ('a.{lang}',)) for pair in PAIRS),
  source_tag='<{lang}>',
  target_tag='<2{lang}>',
)
OPTIONS = DecodingConfig(beam_size=2, max_source_length=32, batch_tokens=512)


class AfterTags(Copying):
  """Copies what stands after two tags."""

  def decode_step(self, tokens, position, rows, cache, memory):
    return super().decode_step(tokens, position + 2, rows, cache, memory)


@pytest.fixture(scope='module')
def tokenizer():
  config = TokenizerConfig(algorithm='bpe', vocabulary_size=50)
  return Tokenizer(train(LINES * 3, config, DATA.all_tags))


def run_of(tokenizer, kind=AfterTags, data=DATA):
  run = make_run(tokenizer, kind)
  return dataclasses.replace(
    run, config=dataclasses.replace(run.config, data=data, decoding=OPTIONS)
  )


@pytest.fixture
def decode(tokenizer, monkeypatch, tmp_path):
  """Runs the program in a folder with `source` and gives its exit code."""
  trained = run_of(tokenizer)
  monkeypatch.setattr(request_module, 'load_run', lambda *arguments: trained)
  monkeypatch.chdir(tmp_path)
  Path('source').write_text(''.join(line + '\n' for line in LINES))
  return lambda *flags: decode_program.main(
    ['--workdir=run', '--input=source', '--output=out', *flags]
  )


def test_a_run_in_one_direction(tokenizer):
  run = in_direction(run_of(tokenizer), 'run', 'en', 'fr')
  data = run.config.data
  assert (data.source_language, data.target_language) == ('en', 'fr')
  assert data.directions == ()
  ids = run.source_tokenizer.encode('a dog')
  assert tokenizer.pieces(ids[:2]) == ['<en>', '<2fr>']
  assert ids[2:] == tokenizer.encode('a dog')
  assert run.target_tokenizer.encode('a dog') == ids[2:]
  assert set(run.config.decoding.forbidden) == set(DATA.all_tags)
  assert len(DATA.all_tags) == 6
  # Once more, it is the run's only one.
  again = in_direction(run, 'run')
  assert again.source_tokenizer.encode('a dog') == ids


def test_every_piece_of_a_long_line_has_the_tags(tokenizer):
  run = in_direction(run_of(tokenizer), 'run', 'de', 'en')
  options = dataclasses.replace(run.config.decoding, max_source_length=12)
  translator = Translator(run, options)
  found = list(translator.translate_n_best(LINES))
  expected = [' '.join(line.split()) for line in LINES]
  assert [each[0].text for each in found] == expected
  tags = ['<de>', '<2en>']
  pieces = [
    tokenizer.pieces(pair.source) for each in found for pair in each[0].pairs
  ]
  # Two of the lines are blank.
  assert len(pieces) > len(LINES) - 2
  assert all(own[:2] == tags and len(own) <= 12 for own in pieces)
  assert not any(set(own[2:]) & set(DATA.all_tags) for own in pieces)


def test_tags_never_come_out(tokenizer):
  """A model that copies the tags too is made to say something else."""
  run = in_direction(run_of(tokenizer, Copying), 'run', 'de', 'en')
  tags = set(run.source_tokenizer.tags)
  assert len(tags) == 2
  (best, *_) = Translator(run, run.config.decoding, 2).translate_n_best(
    ['a dog']
  )
  for each in best:
    assert not tags & set(each.pairs[0].target)
    assert '<' not in each.text


def test_scores_are_those_of_the_tagged_source(tokenizer):
  run = in_direction(run_of(tokenizer), 'run', 'de', 'en')
  encoder = Scorer(run, run.config.decoding)._encoders[0]
  pair = encoder.encode('x', 'a dog', 'a dog')
  assert tokenizer.pieces(pair.source[:2]) == ['<de>', '<2en>']
  assert pair.source[2:] == pair.target
  assert encoder.encode('x', '', '').is_blank


@pytest.mark.parametrize(
  'flags',
  [
    ['--source_language=de', '--target_language=en'],
    # One direction alone is from de, one into fr.
    ['--source_language=de'],
    ['--target_language=fr'],
  ],
)
def test_the_program_translates_in_a_direction(decode, flags, caplog):
  assert decode(*flags) == 0
  expected = [' '.join(line.split()) for line in LINES]
  assert Path('out').read_text().split('\n') == [*expected, '']
  assert 'zero-shot' not in caplog.text


def test_a_zero_shot_direction_is_warned_of(decode, caplog):
  caplog.set_level(logging.WARNING)
  assert decode('--source_language=ro', '--target_language=fr') == 0
  warnings = [m for m in caplog.messages if 'zero-shot' in m]
  assert warnings == [
    'run was not trained to translate from ro to fr: zero-shot'
  ]
  assert len(Path('out').read_text().splitlines()) == len(LINES)


LISTED = 'de-en, en-de, en-fr, ro-en'


@pytest.mark.parametrize(
  ('flags', 'message'),
  [
    ([], f'run translates in several directions: {LISTED}; give '),
    (['--target_language=en'], 'run translates in several directions'),
    (
      ['--source_language=xx', '--target_language=en'],
      '--source_language=xx --target_language=en: run translates ' + LISTED,
    ),
    (
      ['--source_language=fr', '--target_language=de'],
      '--source_language=fr --target_language=de: run translates ' + LISTED,
    ),
    (['--source_language=de', '--target_language=de'], 'run translates de-en'),
    (['--source_language=fr'], '--source_language=fr: run translates de-en'),
  ],
)
def test_no_direction_or_an_unknown_one_is_one_line(
  decode, capsys, flags, message
):
  assert decode(*flags) == 2
  (line,) = [
    line
    for line in capsys.readouterr().err.splitlines()
    if line.startswith('error: ')
  ]
  assert message in line
  assert not Path('out').exists()


def test_without_a_tag_there_is_no_zero_shot(tokenizer):
  data = dataclasses.replace(
    DATA,
    directions=(DATA.directions[0], DATA.directions[2]),
    source_tag='',
    target_tag='',
  )
  with pytest.raises(InputError, match='run translates de-en, en-fr'):
    in_direction(run_of(tokenizer, data=data), 'run', 'de', 'fr')
  run = in_direction(run_of(tokenizer, data=data), 'run', 'en', 'fr')
  assert run.source_tokenizer is tokenizer
  assert run.config.decoding.forbidden == ()


def test_alignments_count_the_words_of_the_text(tokenizer, tmp_path):
  tagged = tokenizer.tagged(DATA.tags('de', 'en'))
  source, target = tagged.encode('a dog cats'), tokenizer.encode('cats a')
  numbers = [
    [sum(p.startswith('▁') for p in tokenizer.pieces(ids[: i + 1])) - 1
     for i in range(len(ids))]
    for ids in (source[2:], target)
  ]  # fmt: skip
  # Each target word looks at its like, and still more at a tag.
  words = {0: 2, 1: 0}
  weights = np.zeros((len(target) + 1, len(source) + 1), np.float32)
  weights[:, 0] = 1
  for row, word in enumerate(numbers[1]):
    weights[row, 2 + numbers[0].index(words[word])] = 0.5
  pair = PairIds([*source, 3], [*target, 3])
  view = View(pair, Internals(weights, None, None))
  path = tmp_path / 'links.pharaoh'
  with alignment_file(str(path), tagged, tokenizer, 'word') as write:
    write(0, [view, view])
  assert path.read_text() == '2-0 0-1 5-2 3-3\n'


@pytest.mark.extended
def test_an_exported_direction_puts_its_tags(tokenizer, tmp_path):
  plain = random_run(tokenizer, 3)
  config = dataclasses.replace(plain.config, data=DATA, decoding=OPTIONS)
  run = in_direction(dataclasses.replace(plain, config=config), 'run', 'ro')
  lines = ['a dog', '', 'the cat sat']
  stablehlo.export(run, tmp_path / 'out', StablehloOptions(((2, 16),)))
  translate = runpy.run_path(str(tmp_path / 'out' / 'load.py'))['translate']
  found = translate(lines)
  expected = list(Translator(run, run.config.decoding).translate(lines))
  assert found == expected
  untagged = dataclasses.replace(run, source_tokenizer=tokenizer)
  other = Translator(untagged, run.config.decoding).translate(lines)
  assert list(other) != expected
  written = ['<2en> a dog', '<ro><2en>', ' <ro> <2en> the cat sat']
  assert translate(written) == expected
  with pytest.raises(ValueError, match=r'^line 2: begins with <2fr>, the tag'):
    translate(['a dog', '<2fr> a dog'])

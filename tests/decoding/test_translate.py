"""Translation of lines, with models whose output is known."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest
from compilations import compiled
from copying import (
  LINES,
  Endless,
  make_run,
  make_tokenizer,
  random_run,
  traces,
  with_learned_positions,
)

from fusion_jax.config import DecodingConfig
from fusion_jax.decoding.translate import Translator
from fusion_jax.errors import InputError

OPTIONS = DecodingConfig(
  beam_size=2, max_source_length=24, batch_tokens=256, max_length_extra=3
)


@pytest.fixture(scope='module')
def trained(tokenizer):
  return random_run(tokenizer, 5)


def test_one_line_out_for_one_line_in(tokenizer):
  translator = Translator(make_run(tokenizer), OPTIONS)
  lines = LINES * 7
  expected = [' '.join(line.split()) for line in lines]
  assert list(translator.translate(lines)) == expected
  assert list(translator.translate([])) == []
  assert list(translator.translate(['', ''])) == ['', '']


def test_text_is_normalised_first(tokenizer):
  translator = Translator(make_run(tokenizer), OPTIONS)
  given = ['\ufeffthe  cat\u2028sat\r', 'a\x00dog']
  assert list(translator.translate(given)) == ['the cat sat', 'a dog']


@pytest.mark.parametrize(
  ('language', 'between'),
  [('de', ' '), ('ja', ''), ('kor_Hang', ' '), ('khm_Khmr', ''), ('cmn', '')],
)
def test_a_long_line_is_translated_in_pieces(tokenizer, language, between):
  options = dataclasses.replace(OPTIONS, max_source_length=8)
  run = make_run(tokenizer, language=language)
  # Each fits into 7 subwords and the end symbol, no two do.
  sentences = ['the dog sat.', 'a cat sat!', 'the house?', 'on a mat.']
  assert all(4 <= len(tokenizer.encode(s)) <= 7 for s in sentences)
  lines = ['a dog', ' '.join(sentences), 'cats']
  translated = list(Translator(run, options).translate(lines))
  assert translated == ['a dog', between.join(sentences), 'cats']


def test_what_cannot_be_seen_is_not_translated(tokenizer):
  options = dataclasses.replace(OPTIONS, max_source_length=8)
  translator = Translator(make_run(tokenizer), options)
  lines = ['\u200b\u2060', 'a dog', '\xad \ufe0f', '\u200b' * 30 + ' a dog']
  found = [best[0] for best in translator.translate_n_best(lines)]
  assert [len(translation.pairs) for translation in found] == [0, 1, 0, 1]
  assert [translation.text for translation in found[:3]] == ['', 'a dog', '']


def test_limit_is_that_of_the_sentence_not_of_its_batch(tokenizer):
  run = make_run(tokenizer, Endless)
  options = dataclasses.replace(
    OPTIONS, beam_size=1, max_length_ratio=1.5, max_length_extra=2
  )
  lines = ['cats', 'the dog sat', LINES[3][:30]]
  for line, text in zip(
    lines, Translator(run, options).translate(lines), strict=True
  ):
    # The source has its end symbol, and so has the translation: of
    # ceil(1.5 * source) + 2 symbols one is the end.
    source = len(tokenizer.encode(line)) + 1
    expected = int(np.ceil(1.5 * source)) + 1
    first = tokenizer.encode(line)[0]
    assert text == tokenizer.decode([first] * expected)


def test_translation_does_not_depend_on_the_batch(trained):
  lines = [line for line in LINES if line.strip()]
  lines += [' '.join(line.split()[:3]) for line in lines]
  together = list(Translator(trained, OPTIONS).translate(lines))
  assert len(set(together)) > len(lines) // 2
  alone = [next(Translator(trained, OPTIONS).translate([x])) for x in lines]
  assert together == alone
  backwards = list(Translator(trained, OPTIONS).translate(lines[::-1]))
  assert together == backwards[::-1]


def test_n_best_is_sorted_distinct_and_begins_with_the_best(trained):
  options = dataclasses.replace(OPTIONS, beam_size=3)
  lines = ['the cat sat', '', 'a dog on the mat']
  best = list(Translator(trained, options).translate(lines))
  found = list(Translator(trained, options, n_best=3).translate_n_best(lines))
  assert [translations[0].text for translations in found] == best
  assert [len(translations) for translations in found] == [3, 1, 3]
  for translations in found:
    scores = [translation.score for translation in translations]
    assert scores == sorted(scores, reverse=True)
    assert len({(t.text, t.score) for t in translations}) == len(translations)
    assert all(t.log_probability <= t.score for t in translations)


@pytest.mark.parametrize('n_best', [0, 3])
def test_n_best_is_at_most_the_beam(tokenizer, n_best):
  with pytest.raises(InputError, match='between 1 and the beam size 2, got'):
    Translator(make_run(tokenizer), OPTIONS, n_best)


def test_only_declared_shapes_are_compiled_and_each_once(tokenizer):
  options = dataclasses.replace(OPTIONS, batch_tokens=128)
  translator = Translator(make_run(tokenizer), options)
  traces.clear()
  for seed in range(3):
    order = np.random.default_rng(seed).permutation(40)
    list(translator.translate([LINES[i % len(LINES)] for i in order]))
    list(Translator(make_run(tokenizer), options).translate(LINES[:seed]))
  declared = {(shape.rows, shape.source) for shape in translator.shapes}
  assert set(traces) <= declared
  assert len(traces) == len(set(traces))


def test_an_endless_input_is_translated_as_it_comes(tokenizer):
  translator = Translator(make_run(tokenizer), OPTIONS)
  taken = []

  def endless():
    for number in itertools.count():
      taken.append(number)
      yield LINES[number % len(LINES)]

  first = list(itertools.islice(translator.translate(endless()), 3))
  assert first == ['the cat sat on the mat', '', 'a dog']
  # 64 batches of 256 slots; a line takes at least one.
  assert len(taken) <= 64 * 256


def test_progress_counts_the_lines(tokenizer):
  counts = []
  options = dataclasses.replace(OPTIONS, max_source_length=8)
  translator = Translator(
    make_run(tokenizer), options, on_progress=counts.append
  )
  long = 'the cat sat on the mat ' * 9
  list(translator.translate(['a dog', long, ''] * 9))
  assert sum(counts) == 27


def test_a_translation_is_not_too_short(trained, tokenizer):
  lines = ['the cat sat', 'a dog', 'cats']
  options = dataclasses.replace(
    OPTIONS, min_length_ratio=1.5, min_length_extra=2, max_length_extra=4
  )
  translator = Translator(trained, options)
  free = _lengths(Translator(trained, OPTIONS), lines)
  found = _lengths(translator, lines)
  assert found != free
  for line, length in zip(lines, found, strict=True):
    source = len(tokenizer.encode(line)) + 1
    assert length >= int(np.ceil(1.5 * source)) + 2


def _lengths(translator, lines):
  """The lengths of the best translations, end symbols included."""
  found = translator.translate_n_best(lines)
  return [len(best[0].pairs[0].target) for best in found]


def test_no_word_twice(trained):
  options = dataclasses.replace(OPTIONS, no_repeat_ngram=1)
  (best,) = Translator(trained, options).translate(['the cat sat on'])
  again = trained.target_tokenizer.encode(best)
  assert len(again) == len(set(again)) > 3


@pytest.mark.parametrize('piece', ['nosuchpiece', '</s>'])
def test_a_piece_that_cannot_be_forbidden_is_named(tokenizer, piece):
  options = dataclasses.replace(OPTIONS, forbidden=(piece,))
  with pytest.raises(InputError, match=f"decoding.forbidden: '{piece}' is no"):
    Translator(make_run(tokenizer), options)


@pytest.mark.extended
def test_samples_depend_on_seed_and_line_alone(trained):
  lines = [line for line in LINES if line.strip()]
  options = dataclasses.replace(OPTIONS, search='sample')

  def samples(n_best=1, **changes):
    translator = Translator(
      trained, dataclasses.replace(options, **changes), n_best
    )
    return [
      [each.text for each in found]
      for found in translator.translate_n_best(lines)
    ]

  together = samples()
  assert samples(batch_tokens=32) == together
  assert samples(seed=1) != together
  three = samples(3)
  assert all(len(found) == 3 for found in three)
  assert len({text for found in three for text in found}) > len(lines)


def test_translations_begin_with_their_prefixes(trained, tokenizer):
  lines = ['the cat sat', '', 'a dog', 'cats']
  prefixes = ['a dog', 'mat', '', 'the']
  translator = Translator(trained, OPTIONS)
  forced = list(translator.translate_n_best(lines, prefixes))
  free = list(translator.translate_n_best(lines))
  for line, prefix, own, other in zip(
    lines, prefixes, forced, free, strict=True
  ):
    if not line:
      assert own == other
      continue
    ids = tokenizer.encode(prefix)
    target = own[0].pairs[0].target
    assert target[: len(ids)] == ids
    assert len(target) > len(ids)
    if not prefix:
      assert own == other
    assert sum(own[0].token_log_probabilities) == pytest.approx(
      own[0].log_probability, abs=1e-3
    )
  assert forced[0][0].text != free[0][0].text


@pytest.mark.parametrize(
  ('prefix', 'message'),
  [
    ('a 漢 dog', "line 2: its prefix 'a 漢 dog' has characters that are not"),
    ('a dog ' * 30, 'line 2: its prefix has .* translation at most'),
  ],
)
def test_impossible_prefixes(trained, prefix, message):
  translator = Translator(trained, OPTIONS)
  found = translator.translate_n_best(['a dog', 'cats'], ['', prefix])
  with pytest.raises(InputError, match=message):
    list(found)


def test_every_line_at_once(tokenizer):
  translator = Translator(make_run(tokenizer), OPTIONS, at_once=True)
  read = []

  def lines():
    for line in LINES:
      read.append(line)
      yield line

  translated = translator.translate(lines())
  for number, line in enumerate(LINES, start=1):
    assert next(translated) == ' '.join(line.split())
    assert len(read) == number


@pytest.mark.extended
def test_few_lines_are_held(tokenizer):
  options = dataclasses.replace(OPTIONS, batch_tokens=16)
  translator = Translator(make_run(tokenizer), options, devices=1)
  held, most, read, first = 0, 0, 0, 0

  def lines():
    nonlocal held, most, read
    for _ in range(600):
      held, read = held + 1, read + 1
      most = max(most, held)
      yield 'a dog'

  for _ in translator.translate(lines()):
    first = read if held == read else first
    held -= 1
  # 64 batches of 16 slots, 1 + 2 * 3 subwords of 2 hypotheses a line.
  assert most <= 64 * 16 // 7 + 2
  assert first <= 4 * 16 // 7 + 2


def test_all_shapes_are_compiled_ahead(tokenizer):
  options = dataclasses.replace(OPTIONS, max_source_length=16)
  translator = Translator(make_run(tokenizer), options)
  shapes = [shape for shape, _ in translator.warm_up()]
  assert shapes == list(translator.shapes)
  traces.clear()
  list(translator.translate([line for line in LINES if len(line) < 30]))
  assert traces == []


def test_sources_longer_than_the_positions_of_the_model(tokenizer):
  run = with_learned_positions(make_run(tokenizer), 300)
  options = dataclasses.replace(OPTIONS, max_source_length=301)
  with pytest.raises(InputError, match='must be at most 300, the positions'):
    Translator(run, options)


def test_a_beam_wider_than_the_vocabulary(tokenizer):
  options = dataclasses.replace(OPTIONS, beam_size=41)
  with pytest.raises(InputError, match='must be at most 40, the subwords'):
    Translator(make_run(tokenizer), options)


@pytest.mark.extended
@pytest.mark.parametrize(
  # A batch has at most eight rows here, so that on eight devices one program
  # of each source length is enough.
  ('devices', 'programs'),
  [(1, 7), (8, 3)],
)
def test_lines_in_other_windows_compile_nothing(devices, programs):
  options = DecodingConfig(
    beam_size=2, max_source_length=24, batch_tokens=128, max_length_extra=3
  )
  jax.clear_caches()
  translator = Translator(
    random_run(make_tokenizer(), 0), options, devices=devices
  )
  with compiled() as names:
    shapes = list(translator.warm_up())
  assert len(shapes) == 7
  assert sum('search_batch' in name for name in names) == programs
  with compiled() as names:
    first = list(translator.translate(LINES))
    again = list(translator.translate(LINES * 3))
  assert names == []
  assert again == first * 3

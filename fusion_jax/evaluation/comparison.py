"""Comparison of systems: scores, tests, buckets and examples as numbers."""

import collections
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fusion_jax.evaluation import buckets, significance
from fusion_jax.evaluation.differences import (
  largest_differences,
  sentence_scores,
)
from fusion_jax.evaluation.paired_tests import paired_test
from fusion_jax.evaluation.sentence_statistics import (
  Map,
  Statistics,
  score_of,
  statistics_of,
)
from fusion_jax.evaluation.systems import System, TextFile
from fusion_jax.languages import Words, words_of
from fusion_jax.metrics import bleu_for, metrics_for, signature_of

# Statistics of each file of each system, the baseline first.
Counted = Mapping[str, Sequence[Statistics]]

_TESTS = {'bootstrap': 'bs', 'randomisation': 'ar'}


@dataclasses.dataclass(frozen=True)
class Texts:
  """Texts to compare.

  Attributes:
    source: Text that was translated.
    references: One or more human translations.
    systems: Systems, the baseline first.
    source_language: Source language, which decides what a word is; '' for
      13a's words.
    target_language: Language of references and translations; '' for
      13a's words.
    train_target: Text in which word frequencies are counted; None for the first
      reference.
    bleu_tokenizer: BLEU's tokenizer, as in `DecodingConfig`.
  """

  source: TextFile
  references: tuple[TextFile, ...]
  systems: tuple[System, ...]
  source_language: str = ''
  target_language: str = ''
  train_target: TextFile | None = None
  bleu_tokenizer: str = ''

  @property
  def target_words(self) -> Words:
    """How references and translations are cut into words."""
    return words_of(self.target_language, self.bleu_tokenizer)


@dataclasses.dataclass(frozen=True)
class Options:
  """Options of a comparison.

  Attributes:
    samples: Number of bootstrap samples.
    trials: Number of trials of approximate randomisation.
    length_bounds: Bounds of the buckets of lengths.
    quantiles: Number of buckets of lengths with the same number of lines each;
      0 for none.
    examples: Number of sentences to show each way.
  """

  samples: int = 1000
  trials: int = 10_000
  length_bounds: tuple[int, ...] = buckets.PAPER_LENGTHS
  quantiles: int = 4
  examples: int = 5


def compare(texts: Texts, options: Options, run: Map = map) -> dict[str, Any]:
  """Compute scores, tests, buckets and examples."""
  counted = _count(texts, run)
  names = list(counted)
  return {
    'source': texts.source.path,
    'references': [each.path for each in texts.references],
    'lines': len(texts.source.lines),
    'source_language': texts.source_language,
    'target_language': texts.target_language,
    'baseline': names[0],
    'systems': {
      system.name: [each.path for each in system.outputs]
      for system in texts.systems
    },
    'runs': {
      each.path: each.run
      for system in texts.systems
      for each in system.outputs
      if each.run
    },
    'signatures': _signatures(texts),
    'seeds': _seeds(texts, counted),
    'tests': _paired(texts, counted, options, run) if names[1:] else {},
    'sign_test': _sign_tests(counted),
    'length_bounds': list(options.length_bounds),
    'lengths': _lengths(texts, counted, options),
    'frequencies': _frequencies(texts),
    'differences': _differences(texts, counted, options.examples),
  }


def _count(texts: Texts, run: Map) -> Counted:
  outputs = [each.lines for system in texts.systems for each in system.outputs]
  references = [each.lines for each in texts.references]
  found = iter(statistics_of(outputs, references, texts.target_words, run))
  return {
    system.name: list(itertools.islice(found, len(system.outputs)))
    for system in texts.systems
  }


def _signatures(texts: Texts) -> dict[str, str]:
  metrics = metrics_for(texts.target_words)
  count = len(texts.references)
  return {
    name: signature_of(metric, count).format()
    for name, metric in metrics.items()
  }


def _seeds(texts: Texts, counted: Counted) -> dict[str, Any]:
  """Return the scores over the seeds for each metric and system."""
  found = {}
  for name, metric in metrics_for(texts.target_words).items():
    seeds = {
      system: significance.over_seeds(
        [score_of(metric, each[name]) for each in files]
      )
      for system, files in counted.items()
    }
    first, *others = seeds
    p_values = {
      other: significance.welch(seeds[first], seeds[other]) for other in others
    }
    found[name] = {
      system: dataclasses.asdict(each) | {'welch': p_values.get(system)}
      for system, each in seeds.items()
    }
  return found


def _paired(
  texts: Texts, counted: Counted, options: Options, run: Map
) -> dict[str, Any]:
  """Return the signature and the results of each test and metric."""
  names = list(metrics_for(texts.target_words))
  asked = [(test, name) for test in _TESTS for name in names]
  sizes = {'bootstrap': options.samples, 'randomisation': options.trials}
  results = run(
    paired_test,
    [name for _, name in asked],
    itertools.repeat(texts.target_words),
    itertools.repeat(len(texts.references)),
    [
      {key: each[0][name] for key, each in counted.items()} for _, name in asked
    ],
    [_TESTS[test] for test, _ in asked],
    [sizes[test] for test, _ in asked],
  )
  found: dict[str, dict[str, Any]] = {test: {} for test in _TESTS}
  for (test, name), (signed, each) in zip(asked, results, strict=True):
    values = {key: dataclasses.asdict(value) for key, value in each.items()}
    found[test][name] = {'signature': signed, 'systems': values}
  return found


def _sign_tests(counted: Counted) -> dict[str, Any]:
  firsts = {name: files[0]['BLEU'] for name, files in counted.items()}
  (_, baseline), *others = firsts.items()
  return {
    name: dataclasses.asdict(significance.sign_test(baseline, each))
    for name, each in others
  }


def _lengths(
  texts: Texts, counted: Counted, options: Options
) -> dict[str, list[dict]]:
  words = buckets.word_counts(
    texts.source.lines, bleu_for(texts.source_language)
  )
  lengths = np.array([each.total() for each in words])
  statistics = {
    name: [each['BLEU'] for each in files] for name, files in counted.items()
  }
  bounds = {'bounds': options.length_bounds}
  if options.quantiles:
    bounds['quantiles'] = buckets.quantile_bounds(lengths, options.quantiles)
  bleu = bleu_for(texts.target_words)
  return {
    kind: buckets.bleu_by_length(
      lengths, buckets.buckets_between(each), statistics, bleu
    )
    for kind, each in bounds.items()
  }


def _frequencies(texts: Texts) -> dict[str, Any]:
  bleu = bleu_for(texts.target_words)
  reference = buckets.word_counts(texts.references[0].lines, bleu)
  # No word of the reference has the frequency 0 in it.
  counted_in, ranges = texts.references[0].path, buckets.FREQUENCIES[1:]
  low, counts = 0, reference
  if texts.train_target:
    counted_in, ranges = texts.train_target.path, buckets.FREQUENCIES
    low, counts = -1, buckets.word_counts(texts.train_target.lines, bleu)
  frequency: collections.Counter[str] = collections.Counter()
  for words in counts:
    frequency.update(words)
  systems = {
    system.name: [
      buckets.word_counts(each.lines, bleu) for each in system.outputs
    ]
    for system in texts.systems
  }
  rows = buckets.f1_by_frequency(
    frequency, buckets.buckets_between(ranges, low), reference, systems
  )
  return {'counted_in': counted_in, 'buckets': rows}


def _differences(texts: Texts, counted: Counted, most: int) -> dict[str, Any]:
  metric = metrics_for(texts.target_words)['chrF2']
  scores = {
    name: sentence_scores(metric, files[0]['chrF2'])
    for name, files in counted.items()
  }
  lines = {each.name: each.outputs[0].lines for each in texts.systems}
  (first, baseline), *others = scores.items()
  return {
    name: {
      way: [
        each | _texts(texts, each['line'] - 1, lines[first], lines[name])
        for each in found
      ]
      for way, found in largest_differences(baseline, own, most).items()
    }
    for name, own in others
  }


def _texts(
  texts: Texts, index: int, baseline: Sequence[str], system: Sequence[str]
) -> dict[str, Any]:
  return {
    'source': texts.source.lines[index],
    'references': [each.lines[index] for each in texts.references],
    'baseline_text': baseline[index],
    'system_text': system[index],
  }

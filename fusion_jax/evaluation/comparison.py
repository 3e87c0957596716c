"""Comparison of systems: scores, tests, buckets and examples as numbers."""

import argparse
import collections
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from fusion_jax.evaluation import buckets, significance
from fusion_jax.evaluation.sentence_statistics import (
  CORPUS_SCORES,
  Map,
  Statistics,
  score_of,
  statistics_of,
)
from fusion_jax.evaluation.systems import Texts
from fusion_jax.metrics import bleu_for, metrics_for, signature_of

# Statistics of each file of each system, the baseline first.
Counted = Mapping[str, Sequence[Statistics]]

_TESTS = {'bootstrap': 'bs', 'randomisation': 'ar'}


@dataclasses.dataclass(frozen=True)
class Options:
  """Options of a comparison, as the flags of `compare` name them."""

  samples: int = 1000
  trials: int = 10_000
  length_bounds: tuple[int, ...] = buckets.PAPER_LENGTHS
  quantiles: int = 4
  examples: int = 5

  @classmethod
  def of_flags(cls, arguments: argparse.Namespace) -> 'Options':
    """Return the options that the flags give."""
    names = [field.name for field in dataclasses.fields(cls)]
    values = {name: getattr(arguments, name) for name in names}
    text = values['length_bounds']
    bounds = buckets.read_bounds('--length_bounds', text)
    return cls(**values | {'length_bounds': bounds})


def compare(texts: Texts, options: Options, run: Map = map) -> dict[str, Any]:
  """Compute scores, tests, buckets and examples."""
  counted = _count(texts, run)
  names = list(counted)
  return {
    'source': texts.source.path,
    'references': [reference.path for reference in texts.references],
    'lines': len(texts.source.lines),
    'source_language': texts.source_language,
    'target_language': texts.target_language,
    'baseline': names[0],
    'systems': {
      system.name: [output.path for output in system.outputs]
      for system in texts.systems
    },
    'runs': {
      output.path: output.run
      for system in texts.systems
      for output in system.outputs
      if output.run
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
  outputs = [text.lines for system in texts.systems for text in system.outputs]
  references = [text.lines for text in texts.references]
  counted = iter(statistics_of(outputs, references, texts.target_words, run))
  return {
    system.name: list(itertools.islice(counted, len(system.outputs)))
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
  by_metric = {}
  for name in metrics_for(texts.target_words):
    seeds = {
      system: significance.over_seeds([score_of(name, x[name]) for x in files])
      for system, files in counted.items()
    }
    first, *others = seeds
    p_values = {
      other: significance.welch(seeds[first], seeds[other]) for other in others
    }
    by_metric[name] = {
      system: dataclasses.asdict(x) | {'welch': p_values.get(system)}
      for system, x in seeds.items()
    }
  return by_metric


def _paired(
  texts: Texts, counted: Counted, options: Options, run: Map
) -> dict[str, Any]:
  """Return the signature and the results of each test and metric."""
  pairs = list(itertools.product(_TESTS, metrics_for(texts.target_words)))
  sizes = {'bootstrap': options.samples, 'randomisation': options.trials}
  results = run(
    significance.paired_test,
    [name for _, name in pairs],
    itertools.repeat(texts.target_words),
    itertools.repeat(len(texts.references)),
    [{key: x[0][name] for key, x in counted.items()} for _, name in pairs],
    [_TESTS[test] for test, _ in pairs],
    [sizes[test] for test, _ in pairs],
  )
  by_test: dict[str, dict[str, Any]] = {test: {} for test in _TESTS}
  for (test, name), (signature, systems) in zip(pairs, results, strict=True):
    values = {key: dataclasses.asdict(x) for key, x in systems.items()}
    by_test[test][name] = {'signature': signature, 'systems': values}
  return by_test


def _sign_tests(counted: Counted) -> dict[str, Any]:
  firsts = {name: files[0]['BLEU'] for name, files in counted.items()}
  (_, baseline), *others = firsts.items()
  return {
    name: dataclasses.asdict(significance.sign_test(baseline, system))
    for name, system in others
  }


def _lengths(
  texts: Texts, counted: Counted, options: Options
) -> dict[str, list[dict]]:
  words = buckets.word_counts(
    texts.source.lines, bleu_for(texts.source_language)
  )
  lengths = np.array([counts.total() for counts in words])
  statistics = {
    name: [x['BLEU'] for x in files] for name, files in counted.items()
  }
  bounds = {'bounds': options.length_bounds}
  if options.quantiles:
    bounds['quantiles'] = buckets.quantile_bounds(lengths, options.quantiles)
  return {
    kind: buckets.bleu_by_length(
      lengths, buckets.buckets_between(limits), statistics
    )
    for kind, limits in bounds.items()
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
      buckets.word_counts(text.lines, bleu) for text in system.outputs
    ]
    for system in texts.systems
  }
  rows = buckets.f1_by_frequency(
    frequency, buckets.buckets_between(ranges, low), reference, systems
  )
  return {'counted_in': counted_in, 'buckets': rows}


def _differences(texts: Texts, counted: Counted, most: int) -> dict[str, Any]:
  """Return the sentences that differ most by chrF2, of the first files."""
  score = CORPUS_SCORES['chrF2']
  scores = {name: score(files[0]['chrF2']) for name, files in counted.items()}
  lines = {system.name: system.outputs[0].lines for system in texts.systems}
  (first, baseline), *others = scores.items()
  return {
    name: {
      way: [
        example | _texts(texts, example['line'] - 1, lines[first], lines[name])
        for example in examples
      ]
      for way, examples in largest_differences(baseline, system, most).items()
    }
    for name, system in others
  }


def largest_differences(
  baseline: Float[np.ndarray, ' S'], system: Float[np.ndarray, ' S'], most: int
) -> dict[str, list[dict[str, Any]]]:
  """Find the sentences in which one system beats the other by most."""
  change = system - baseline
  examples = {}
  for way, sign in (('better', 1), ('worse', -1)):
    order = np.argsort(-sign * change, kind='stable')[:most]
    examples[way] = [
      {
        'line': int(index) + 1,
        'baseline': float(baseline[index]),
        'system': float(system[index]),
      }
      for index in order
      if sign * change[index] > 0
    ]
  return examples


def _texts(
  texts: Texts, index: int, baseline: Sequence[str], system: Sequence[str]
) -> dict[str, Any]:
  return {
    'source': texts.source.lines[index],
    'references': [text.lines[index] for text in texts.references],
    'baseline_text': baseline[index],
    'system_text': system[index],
  }

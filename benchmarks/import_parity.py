r"""How much an imported model and the program that made it are alike.

    python -m benchmarks.peers.marian_parity ... --folder=DIR
    fusion-jax import --from=marian --input=DIR --output=RUN
    python -m benchmarks.import_parity --workdir=RUN \
        --recorded=DIR/recorded.json \
        --output=benchmarks/results/import_parity_marian.json

Ids of the source lines, greedy and beam translations in the same limit of
length, and log-probabilities of the other program's beam translations. All
searches divide by the length. They are not quite the same: the others let
hypotheses end that are among the best `beam` extensions, the run among the best
2 `beam`; at the limit transformers gives the end symbol for nothing; and
fairseq stops when `beam` hypotheses are finished. Where translations differ,
the scores are compared.
"""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from benchmarks.common import (
  RESULTS,
  circumstances,
  make_parser,
  table,
  write_results,
)
from fusion_jax.config.flags import parse_arguments
from fusion_jax.decoding.batches import padded
from fusion_jax.decoding.score import token_log_probabilities
from fusion_jax.decoding.translate import Translation, Translator
from fusion_jax.json_files import read_json
from fusion_jax.runs.loading import TrainedModel, load_run
from fusion_jax.startup import one_line_errors, start_logging, use_huge_pages

_ROWS = 50


def source_ids(run: TrainedModel, lines: Sequence[str]) -> list[list[int]]:
  """Ids of lines, where pieces after the vocabulary are the unknown token."""
  tokenizer = run.source_tokenizer
  end, unknown = tokenizer.vocabulary.end, tokenizer.vocabulary.unknown
  size = _vocabulary_size(run)
  return [
    [*(n if n < size else unknown for n in ids), end]
    for ids in map(tokenizer.encode, lines)
  ]


def _vocabulary_size(run: TrainedModel) -> int:
  """Ids below the first piece that has no probability."""
  bias = run.parameters.get('output_bias')
  if bias is None:
    return run.source_tokenizer.vocabulary.size
  return int(np.sum(np.asarray(bias) > -20))


def translations(
  run: TrainedModel, lines: Sequence[str], limit: int, beam: int
) -> list[Translation]:
  """Best translations of lines in a limit of length."""
  options = dataclasses.replace(
    run.config.decoding,
    beam_size=beam,
    length_penalty='length',
    alpha=1.0,
    max_length_ratio=0.0,
    max_length_extra=limit,
  )
  n_best = Translator(run, options).translate_n_best(lines)
  return [best[0] for best in n_best]


def log_probabilities(
  run: TrainedModel, sources: list[list[int]], targets: list[list[int]]
) -> list[np.ndarray]:
  """log p of every target token."""
  result = []
  end = run.target_tokenizer.vocabulary.end
  for first in range(0, len(sources), _ROWS):
    sides = []
    for ids in (sources, targets):
      group = ids[first : first + _ROWS]
      sides.append(padded(group, len(group), max(map(len, group)), end))
    (source, lengths), (target, counts) = sides
    output = run.model.apply(
      {'params': run.parameters}, jnp.asarray(source), jnp.asarray(lengths),
      jnp.asarray(target),
    )  # fmt: skip
    scored = token_log_probabilities(output, jnp.asarray(target), 'arithmetic')
    rows = zip(np.asarray(scored), counts, strict=True)
    result += [row[:count] for row, count in rows]
  return result


def compare(run: TrainedModel, recorded: dict[str, Any]) -> dict[str, Any]:
  """Everything that was recorded, beside what the run makes of it."""
  lines, limit = recorded['lines'], recorded['limit']
  ours = source_ids(run, lines)
  scored = log_probabilities(run, recorded['source'], recorded['beam'])
  differences = np.abs(
    np.concatenate(scored) - np.concatenate(recorded['log_probabilities'])
  )
  results: dict[str, Any] = {
    'made_with': recorded['made_with'],
    'lines': len(lines),
    'equal_source_ids': _equal(ours, recorded['source']),
    'target_tokens': differences.size,
    'largest_difference': float(differences.max()),
  }
  for name, beam in (('greedy', 1), ('beam', recorded.get('beam_size', 4))):
    best = translations(run, lines, limit, beam)
    ids = [one.pairs[0].target for one in best]
    pairs = list(enumerate(zip(ids, recorded[name], strict=True)))
    different = [n for n, (mine, other) in pairs if mine != other]
    results[name] = {'equal': len(lines) - len(different)}
    if name == 'beam':
      gains = [best[n].score - float(scored[n].mean()) for n in different]
      results[name]['score_minus_theirs'] = [round(g, 4) for g in gains]
      results['equal_texts'] = _equal(
        [run.target_tokenizer.decode(ids[:-1]) for ids in recorded[name]],
        recorded['texts'],
      )
  return results


def _equal(own: Sequence[Any], other: Sequence[Any]) -> int:
  return sum(a == b for a, b in zip(own, other, strict=True))


@one_line_errors
def main(argv: list[str]) -> None:
  parser = make_parser(__doc__, RESULTS / 'import_parity.json')
  parser.add_argument('--workdir', required=True)
  parser.add_argument('--recorded', type=Path, required=True)
  arguments = parse_arguments(argv, parser)
  start_logging()
  recorded = read_json(arguments.recorded, dict[str, Any])
  results = compare(load_run(arguments.workdir), recorded)
  write_results(arguments.output, circumstances() | results)
  print(table(('', ''), list(results.items())))


if __name__ == '__main__':
  use_huge_pages()
  sys.exit(main(sys.argv[1:]))

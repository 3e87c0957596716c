r"""How much an imported model and the program that made it are alike.

    python -m benchmarks.peers.import_parity marian ... --folder=DIR
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

from benchmarks import common
from fusion_jax.config.flags import parse_arguments
from fusion_jax.decoding.batches import padded
from fusion_jax.decoding.score import token_log_probabilities
from fusion_jax.decoding.translate import Translation, Translator
from fusion_jax.files import read_json
from fusion_jax.runs.loading import TrainedModel, load_run
from fusion_jax.startup import one_line_errors, restart_tuned, start_logging

_ROWS = 50


def source_ids(run: TrainedModel, lines: Sequence[str]) -> list[list[int]]:
  """Ids of lines, where pieces after the vocabulary are the unknown token."""
  tokenizer, bias = run.source_tokenizer, run.parameters.get('output_bias')
  vocabulary = tokenizer.vocabulary
  # The first piece that is never chosen ends it.
  size = (
    vocabulary.size if bias is None else int(np.sum(np.asarray(bias) > -20))
  )
  return [
    [*(n if n < size else vocabulary.unknown for n in ids), vocabulary.end]
    for ids in map(tokenizer.encode, lines)
  ]


def translations(
  run: TrainedModel, lines: Sequence[str], limit: int, beam: int
) -> list[Translation]:
  options = dataclasses.replace(
    run.config.decoding,
    beam_size=beam,
    length_penalty='length',
    alpha=1.0,
    max_length_ratio=0.0,
    max_length_extra=limit,
  )
  return [best[0] for best in Translator(run, options).translate_n_best(lines)]


def log_probabilities(
  run: TrainedModel, sources: list[list[int]], targets: list[list[int]]
) -> list[np.ndarray]:
  result, end = [], run.target_tokenizer.vocabulary.end
  for first in range(0, len(sources), _ROWS):
    groups = [ids[first : first + _ROWS] for ids in (sources, targets)]
    (source, lengths), (target, counts) = (
      padded(group, len(group), max(map(len, group)), end) for group in groups
    )
    target = jnp.asarray(target)
    sides = jnp.asarray(source), jnp.asarray(lengths), target
    output = run.model.apply({'params': run.parameters}, *sides)
    scored = np.asarray(token_log_probabilities(output, target, 'arithmetic'))
    result += [row[:count] for row, count in zip(scored, counts, strict=True)]
  return result


def compare(run: TrainedModel, recorded: dict[str, Any]) -> dict[str, Any]:
  lines, theirs = recorded['lines'], recorded['beam']
  scored = log_probabilities(run, recorded['source'], theirs)
  differences = np.abs(
    np.concatenate(scored) - np.concatenate(recorded['log_probabilities'])
  )
  texts = [run.target_tokenizer.decode(ids[:-1]) for ids in theirs]
  results: dict[str, Any] = {
    'made_with': recorded['made_with'],
    'lines': len(lines),
    'equal_source_ids': _equal(source_ids(run, lines), recorded['source']),
    'target_tokens': differences.size,
    'largest_difference': float(differences.max()),
    'equal_texts': _equal(texts, recorded['texts']),
  }
  for name, beam in (('greedy', 1), ('beam', recorded.get('beam_size', 4))):
    best = translations(run, lines, recorded['limit'], beam)
    ids = [translation.pairs[0].target for translation in best]
    results[name] = {'equal': _equal(ids, recorded[name])}
  different = [n for n in range(len(lines)) if ids[n] != theirs[n]]
  gains = [best[n].score - float(scored[n].mean()) for n in different]
  results['beam']['score_minus_theirs'] = [round(gain, 4) for gain in gains]
  return results


def _equal(ours: Sequence[Any], theirs: Sequence[Any]) -> int:
  return sum(a == b for a, b in zip(ours, theirs, strict=True))


@one_line_errors
def main(argv: list[str]) -> None:
  parser = common.make_parser(__doc__, common.RESULTS / 'import_parity.json')
  parser.add_argument('--workdir', required=True)
  parser.add_argument('--recorded', type=Path, required=True)
  arguments = parse_arguments(argv, parser)
  start_logging()
  recorded = read_json(arguments.recorded, dict[str, Any])
  results = compare(load_run(arguments.workdir), recorded)
  common.write_results(arguments.output, common.circumstances() | results)
  print(common.table(('', ''), list(results.items())))


if __name__ == '__main__':
  restart_tuned()
  sys.exit(main(sys.argv[1:]))

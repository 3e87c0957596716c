"""The schemes from scratch by how their models start: tables and a figure.

    python -m benchmarks.comparison_starts [--publish]

Prints validation loss and BLEU of the plain models, with Glorot's and with
smaller matrices at the start, in pre-norm and in post-norm, with six and with
two encoder layers, and the difference that each scheme makes; then the orders
of the papers. All from the finished runs in benchmarks/results/comparison.
--publish also puts the first table into README.md and docs/results.md and the
second into docs/results.md, and draws the single runs in
docs/comparison_starts.svg.
"""

import sys

from benchmarks.common import make_parser
from benchmarks.comparison.publish import put_into
from benchmarks.comparison.start_figure import draw
from benchmarks.comparison.start_tables import orders, table
from benchmarks.comparison.starts import STARTS, gathered
from benchmarks.serving import ROOT
from fusion_jax.figures import as_svg
from fusion_jax.files import write_whole
from fusion_jax.startup import one_line_errors


@one_line_errors
def main(argv: list[str]) -> None:
  parser = make_parser(__doc__)
  parser.add_argument('--publish', action='store_true')
  arguments = parser.parse_args(argv)
  starts = {name: gathered(start) for name, start in STARTS.items()}
  schemes, pairs = table(starts), orders(starts)
  print(schemes, pairs, sep='\n', end='')
  if arguments.publish:
    docs = ROOT / 'docs'
    write_whole(docs / 'comparison_starts.svg', as_svg(draw(starts)))
    for page in (ROOT / 'README.md', docs / 'results.md'):
      put_into(page, 'starts', schemes)
    put_into(docs / 'results.md', 'orders', pairs)


if __name__ == '__main__':
  main(sys.argv[1:])

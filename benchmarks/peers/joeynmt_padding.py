"""How full JoeyNMT's own training batches are: prints one line of JSON.

    python -m benchmarks.peers.joeynmt_padding CONFIG

Real tokens are those of both sides, end symbols included, start symbols not.
"""

import json
import sys
from pathlib import Path

from joeynmt.config import load_config, parse_global_args
from joeynmt.data import load_data


def main(path: str) -> None:
  arguments = parse_global_args(load_config(Path(path)), mode='train')
  _, vocabulary, data, _, _ = load_data(arguments.data, datasets=['train'])
  batches = data.make_iter(
    batch_size=arguments.train.batch_size,
    batch_type=arguments.train.batch_type,
    shuffle=True,
    pad_index=vocabulary.pad_index,
    eos_index=vocabulary.eos_index,
  )
  real = slots = 0
  for batch in batches:
    real += batch.ntokens + int(batch.src_mask.sum())
    slots += batch.trg.numel() + batch.src.numel()
  print(json.dumps({'real_share': real / slots}))


if __name__ == '__main__':
  sys.exit(main(sys.argv[1]))

"""Translate lines of text with the programs in this folder.

    python load.py <source.txt >translations.txt

It needs only the packages jax, flatbuffers (for jax.export), numpy, regex and
sentencepiece; export.json describes the programs. Each line gives one
translation, an empty line an empty one. A line with more subwords than the
longest program takes is refused; bytes that are not UTF-8 become U+FFFD.
"""

import functools
import json
import math
import re
import sys
import unicodedata
from pathlib import Path

import jax
import jax.export
import numpy as np
import regex
import sentencepiece

FOLDER = Path(__file__).parent
EXPORT = json.loads((FOLDER / 'export.json').read_text())
END = EXPORT['special']['source']['end']
INVISIBLE = regex.compile(r'[\p{C}\p{Z}\p{Default_Ignorable_Code_Point}]*')


def translate(lines):
  """Return the best translation of each line, in order."""
  sources = [encode(line, number) for number, line in enumerate(lines, 1)]
  for number, ids in enumerate(sources, start=1):
    longest = max(shape['source'] for shape in EXPORT['shapes'])
    if len(ids) > longest:
      raise ValueError(
        f'line {number}: {len(ids)} subwords with the end symbol, at most '
        f'{longest} can be translated; cut the line'
      )
  translations = translate_ids([ids for ids in sources if ids])
  return [decode(next(translations)) if ids else '' for ids in sources]


def translate_ids(sources):
  """Yield the ids of the best translation of each source, in order."""
  best: list[list[int]] = [[]] * len(sources)
  order = sorted(range(len(sources)), key=lambda k: -len(sources[k]))
  while order:
    longest = len(sources[order[0]])
    length = min(
      s['source'] for s in EXPORT['shapes'] if s['source'] >= longest
    )
    shapes = [s for s in EXPORT['shapes'] if s['source'] == length]
    shapes.sort(key=lambda shape: shape['rows'])
    chosen = order[: shapes[-1]['rows']]
    order = order[len(chosen) :]
    shape = next(s for s in shapes if s['rows'] >= len(chosen))
    result = search(shape, [sources[k] for k in chosen], chosen)
    for row, k in enumerate(chosen):
      best[k] = result['tokens'][row, 0, : result['lengths'][row, 0]].tolist()
  yield from best


def search(shape, sources, numbers):
  """Run one program on at most shape['rows'] sources of ids."""
  rows = {
    name: np.ones(shape['rows'], np.int32) for name in EXPORT['arguments']
  }
  rows['source'] = np.zeros((shape['rows'], shape['source']), np.int32)
  rows['source'][:, 0] = END
  rows['numbers'] = np.zeros(shape['rows'], np.int32)
  rows['numbers'][: len(sources)] = numbers
  ratio, extra = EXPORT['limits']['ratio'], EXPORT['limits']['extra']
  for row, ids in enumerate(sources):
    rows['source'][row, : len(ids)] = ids
    rows['lengths'][row] = len(ids)
    limit = math.ceil(round(ratio * len(ids), 6)) + extra
    rows['limits'][row] = min(limit, shape['target'])
  rows['weights'] = weights()
  results = program(shape['file'])(
    *[rows[name] for name in EXPORT['arguments']]
  )
  return dict(zip(EXPORT['results'], map(np.asarray, results), strict=True))


@functools.cache
def program(file):
  """Return the program of a file as a function of EXPORT['arguments']."""
  data = bytearray((FOLDER / file).read_bytes())
  return jax.jit(jax.export.deserialize(data).call)


@functools.cache
def weights():
  """Return the parameters, on the device."""
  with np.load(FOLDER / 'weights.npz') as arrays:
    return {name: jax.device_put(arrays[name]) for name in arrays}


@functools.cache
def tokenizer(side):
  """Return the SentencePiece model of 'source' or 'target'."""
  file = FOLDER / f'{side}.model'
  return sentencepiece.SentencePieceProcessor(model_file=str(file))


def encode(line, number=1):
  """Return the ids of a line with tags and end symbol; [] for an empty line.

  The text is normalised like the training text: NFC, no byte order mark,
  control characters and U+2581 as spaces, one space between words, and nothing
  of a line of invisible characters.
  """
  line = unicodedata.normalize('NFC', line.replace('\ufeff', ''))
  line = re.sub(r'[\x00-\x1f\x7f-\x9f\u2581]', ' ', line)
  text = without_tags(' '.join(line.split()), number)
  ids = tokenizer('source').encode(text)
  return [] if INVISIBLE.fullmatch(text) else [*EXPORT['tags'], *ids, END]


def without_tags(text, number):
  """Return a line without the tags before it; refuse those of others."""
  tags = EXPORT['tags'] and EXPORT['known_tags']
  while written := [tag for tag in tags if text.startswith(tag)]:
    tag = max(written, key=len)
    if tokenizer('source').piece_to_id(tag) not in EXPORT['tags']:
      raise ValueError(
        f'line {number}: begins with {tag}, the tag of another direction; '
        'leave it out'
      )
    text = text.removeprefix(tag).lstrip()
  return text


def decode(ids):
  """Return the text of ids that end in the end symbol, on one line."""
  text = tokenizer('target').decode(ids[:-1]) if ids[:-1] else ''
  return ' '.join(text.splitlines())


if __name__ == '__main__':
  given = [
    line.decode('utf-8', 'replace').removesuffix('\n')
    for line in sys.stdin.buffer
  ]
  try:
    translated = translate(given)
  except ValueError as error:
    sys.exit(f'error: {error}')
  sys.stdout.buffer.writelines(line.encode() + b'\n' for line in translated)

"""A small text and translations of it with random mistakes."""

import random

from fusion_jax.data.embedded import generate


def pairs(count):
  """German lines and their English translations."""
  sources, targets = zip(*generate('de', 'en', 'test', count), strict=True)
  return list(sources), list(targets)


def mistaken(lines, share, seed):
  """The lines with a share of their words replaced, left out or doubled."""
  draw = random.Random(seed)
  words = [word for line in lines for word in line.split()]

  def change(word):
    if draw.random() >= share:
      return word
    return draw.choice(['', f'{word} {word}', draw.choice(words)])

  changed = (' '.join(map(change, line.split())) for line in lines)
  return [' '.join(line.split()) for line in changed]


def write(path, lines):
  """Writes the lines; gives the path as text."""
  path.write_text(''.join(f'{line}\n' for line in lines))
  return str(path)

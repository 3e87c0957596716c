"""Runs for the tests of reports, made by hand: nothing is trained."""

import dataclasses
import functools
import html.parser
import json

from fusion_jax.analysis import TextChoice
from fusion_jax.analysis.curves import curves
from fusion_jax.analysis.report.contents import RunReport
from fusion_jax.analysis.run_with_text import RunWithText
from fusion_jax.config import (
  DataConfig,
  ExperimentConfig,
  ModelConfig,
  TokenizerConfig,
)
from fusion_jax.data.tokenizer import Tokenizer, train
from fusion_jax.metrics import corpus_scores
from fusion_jax.runs.loading import TrainedModel, make_model

MODEL = ModelConfig(
  width=16, filter=32, heads=2, encoder_layers=2, decoder_layers=2
)
TRAINED = (
  {'step': 10, 'accuracy': 0.25, 'loss': 4.0, 'perplexity': 50.0},
  {'step': 20, 'accuracy': 0.5, 'loss': 3.0, 'perplexity': None},
  {'step': 30, 'accuracy': 0.75, 'loss': 2.0, 'perplexity': 7.0},
)
VALIDATED = (
  {'step': 20, 'accuracy': 0.375, 'loss': 3.5, 'bleu': 3.0, 'chrf': 20.0},
  {'step': 25, 'accuracy': None, 'loss': None, 'bleu': 4.5, 'chrf': 25.0},
  {'step': 30, 'accuracy': 0.875, 'loss': 2.5, 'bleu': 4.0, 'chrf': 30.0},
)
# What HTML would read as a tag, an entity or a script, and a right-to-left
# line.
TEXT = (
  ('<script>alert("1 & 2")</script> the cat', 'die <b>Katze</b> &amp; so'),
  ("the dog's house", 'das Haus des Hundes'),
  ('a cat', 'eine Katze'),
  ('שלום עולם', 'Hallo Welt'),
)
OTHER = ('die <i>Katze</i> &amp; so', 'das Haus des Katers', 'Katze', 'Hallo')


@functools.cache
def tokenizer():
  lines = [line for pair in TEXT for line in pair] * 3
  config = TokenizerConfig(algorithm='bpe', vocabulary_size=70)
  return Tokenizer(train(lines, config))


def write_metrics(workdir, trained=TRAINED, validated=VALIDATED):
  rows = [
    {'kind': 'train', 'learning_rate': 1e-3, 'encoder_gradient_norm_1': 0.5}
    | row
    for row in trained
  ] + [{'kind': 'valid'} | row for row in validated]
  lines = (json.dumps(row) + '\n' for row in rows)
  (workdir / 'metrics.jsonl').write_text(''.join(lines))


def fused_run(workdir, model=MODEL, name='run', choice=None):
  """A run of checkpoint 30 with TEXT, whose metrics are written."""
  write_metrics(workdir)
  config = ExperimentConfig(name=name, model=model)
  pieces = tokenizer()
  run = TrainedModel(
    config, make_model(config, pieces, pieces), {}, 30, pieces, pieces, (30,)
  )
  analysed = RunWithText(workdir, run, choice or TextChoice())
  analysed.lines = TEXT
  return analysed


def report_of(analysed, cards=(), name='run', made=OTHER, text=TEXT):
  """What `gather` would give of a run that translates so."""
  references = [reference for _, reference in text]
  return RunReport(
    name=name,
    workdir='runs/<one>',
    steps=(30,),
    config=dataclasses.replace(
      analysed.run.config, data=DataConfig(source_language='he')
    ),
    languages=('he', 'de'),
    corpus={'pairs': 1200, 'kept': 1100},
    vocabularies=(70, 70),
    parameters={'encoder layers / self_attention': 750, 'embedding': 250},
    last={'step': 30, 'epoch': 1.25, 'seconds': 90.0},
    code='0.1.0, commit 1a2b3c4',
    curves=curves(analysed),
    cards=tuple(cards),
    translations=tuple(made),
    scores=corpus_scores(list(made), references, 'de'),
    interval=(1.5, 42.25),
  )


class Page(html.parser.HTMLParser):
  """What a browser finds on a page.

  tags: name and attributes of each element.
  text: all text outside of <style>.
  words: the text of the elements of each name.
  """

  def __init__(self, page):
    super().__init__()
    self.tags, self.text, self.words, self._open = [], '', {}, []
    self.feed(page)
    self.close()

  def handle_starttag(self, tag, attrs):
    self.tags.append((tag, dict(attrs)))
    if tag not in ('meta', 'img', 'wbr'):
      self._open.append(tag)
      self.words.setdefault(tag, []).append('')

  def handle_endtag(self, tag):
    assert self._open.pop() == tag

  def handle_data(self, data):
    if self._open:
      self.words[self._open[-1]][-1] += data
      if self._open[-1] != 'style':
        self.text += data

  def all(self, tag):
    return [attributes for name, attributes in self.tags if name == tag]

  def ids(self):
    return [each['id'] for _, each in self.tags if 'id' in each]

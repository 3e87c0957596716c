"""Tatoeba, five pairs with English in one model: everyday sentences.

Paper     Johnson et al. (2017): one model for all, a tag for the target
          Arivazhagan et al. (2019): temperature 5; pre-norm Transformer, 3+3
          layers of width 256
Data      13,768 (ro) to 164,008 (de) pairs of 6.5 words with de, es, fr, nl,
          ro; files tatoeba-{de,es,fr,nl,ro}-en/{train,valid,test}.{lang}.gz in
          data.root
Command   fusion-jax train --config=tatoeba_many
            --config.data.root=DIR --workdir=runs/tatoeba_many
          fusion-jax decode --workdir=runs/tatoeba_many --average=5
            --source_language=ro --target_language=en --input=test.ro
            --reference=test.en
Hardware  one GPU, or 2 CPU cores and a night
Variants  many_to_many (the default): ten directions; many_to_one: five into
          English; one_to_many: five out of English
"""

from fusion_jax.config import Direction, ExperimentConfig
from fusion_jax.config.data import both_ways, from_files
from fusion_jax.config.presets import Row, changed, choose

_PAIRS = [(language, 'en') for language in ('de', 'es', 'fr', 'nl', 'ro')]


def _directions(pairs: list[tuple[str, str]]) -> Row:
  return {'data.directions': tuple(map(_direction, pairs))}


def _direction(pair: tuple[str, str]) -> Direction:
  (other,) = set(pair) - {'en'}
  files = f'tatoeba-{other}-en/{{split}}.{{lang}}.gz'
  return from_files(pair, files, ('train', 'valid', 'test'))


_VARIANTS = {
  'many_to_many': _directions(both_ways(_PAIRS)),
  'many_to_one': _directions(_PAIRS),
  'one_to_many': _directions([pair[::-1] for pair in _PAIRS]),
}


def get_config(variant: str = 'many_to_many') -> ExperimentConfig:
  """A config for the directions of a variant."""
  row = choose(_VARIANTS, variant)
  recipe = {
    'name': f'tatoeba_{variant}',
    'data.target_tag': '<2{lang}>',
    'data.mixing_temperature': 5.0,
    'data.tokenizer.vocabulary_size': 16_000,
    'data.filter.max_length': 64,
    'data.batch.tokens': 4_096,
    'model.width': 256,
    'model.filter': 1_024,
    'model.heads': 4,
    'model.encoder_layers': 3,
    'model.decoder_layers': 3,
    'model.norm': 'pre',
    'optimizer.schedule': 'inverse_sqrt',
    'optimizer.peak': 2e-3,
    'optimizer.warmup_steps': 2_000,
    'training.steps': 20_000,
    'training.validate_every': 2_000,
    'training.save_every': 1_000,
    'training.translate_sentences': 500,
    'decoding.alpha': 1.0,
    'decoding.max_source_length': 64,
  }
  return changed(ExperimentConfig(), recipe | row)

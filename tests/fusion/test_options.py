"""Values and pairs of options that make no sense are refused by name."""

import dataclasses

import pytest

from fusion_jax.config import ExperimentConfig, ModelConfig
from fusion_jax.config.serialization import from_dict, to_dict
from fusion_jax.errors import InputError
from fusion_jax.fusion.gtrans import parse_groups

_REFUSED = {
  'decoder.fusion: .*transparent.*model.encoder.fusion': {
    'decoder': {'fusion': 'transparent'}
  },
  "encoder.multi_layer.layers: multi-layer.*shortcut.source='lexical'": {
    'encoder': {
      'multi_layer': {'layers': 2},
      'shortcut': {'source': 'lexical'},
    }
  },
  "multi-layer attention .*fusion='hierarchical'": {
    'encoder': {'fusion': 'hierarchical', 'multi_layer': {'layers': 2}}
  },
  'encoder.dlcl.dilation: 3 leaves nothing to sum in 2 layers; at most 2': {
    'encoder': {'fusion': 'dlcl', 'dlcl': {'dilation': 3}},
    'encoder_layers': 2,
  },
  'decoder.dlcl.period: 7 leaves nothing to sum in 6 layers': {
    'decoder': {'fusion': 'dlcl', 'dlcl': {'period': 7}}
  },
  "value_residual.kind: 'identity' and shortcut.source='lexical' both": {
    'encoder': {
      'shortcut': {'source': 'lexical'},
      'value_residual': {'kind': 'identity'},
    }
  },
  "encoder.start: 'baseline' cannot be exact with value_residual.kind=": {
    'encoder': {'start': 'baseline', 'value_residual': {'kind': 'sparse'}}
  },
  "baseline.*kind='shared', whose layers have no values; use 'learnable'": {
    'decoder': {'start': 'baseline', 'value_residual': {'kind': 'shared'}}
  },
  "encoder.value_residual.where: 'both' has no effect in the encoder": {
    'encoder': {'value_residual': {'kind': 'identity', 'where': 'both'}}
  },
  'model.scan_layers: needs layers that are all alike.*with value_residual': {
    'scan_layers': True,
    'decoder': {'value_residual': {'kind': 'identity'}},
  },
  "encoder.skip_gains: True and fusion='hyper_connections' both": {
    'norm': 'pre',
    'encoder': {'fusion': 'hyper_connections', 'skip_gains': True},
  },
  "decoder.skip_gains: True and fusion='attention_residuals' both": {
    'norm': 'pre',
    'decoder': {'fusion': 'attention_residuals', 'skip_gains': True},
  },
  "encoder.fusion: 'surface_fusion' does not fit the encoder": {
    'encoder': {'fusion': 'surface_fusion'}
  },
  "surface.weight: 0.5 has no effect with surface.kind='soft'": {
    'decoder': {
      'fusion': 'surface_fusion',
      'surface': {'kind': 'soft', 'weight': 0.5},
    }
  },
  "surface.combine: 'arithmetic' has no effect with surface.kind='soft'": {
    'decoder': {
      'fusion': 'surface_fusion',
      'surface': {'kind': 'soft', 'combine': 'arithmetic'},
    }
  },
  "surface.temperature: 5.0 has no effect with surface.kind='learned'": {
    'decoder': {
      'fusion': 'surface_fusion',
      'surface': {'kind': 'learned', 'temperature': 5.0},
    }
  },
  "surface.least: 0.2 has no effect with surface.kind='hard'": {
    'decoder': {'fusion': 'surface_fusion', 'surface': {'least': 0.2}}
  },
  'surface.weight: 0.8 is not between surface.least=0.3 and 1 - 0.3': {
    'decoder': {
      'fusion': 'surface_fusion',
      'surface': {'kind': 'learned', 'least': 0.3},
    }
  },
  'decoder.surface.weight: must be < 1, got 1.0': {
    'decoder': {'fusion': 'surface_fusion', 'surface': {'weight': 1.0}}
  },
  "decoder.surface.kind: 'soft' has no effect with .*fusion='gtrans'": {
    'decoder': {'fusion': 'gtrans', 'surface': {'kind': 'soft'}}
  },
  'encoder.mudd.ways: 0 leaves nothing to sum; use 1 or 4, or give mudd.mem': {
    'norm': 'pre',
    'encoder': {'fusion': 'mudd', 'mudd': {'ways': 0}},
  },
  'decoder.mudd.ways: 0 leaves nothing to sum; use 1 or 4$': {
    'norm': 'pre',
    'decoder': {'fusion': 'mudd', 'mudd': {'ways': 0}},
  },
  'decoder.mudd.memory_ways: 1 has no effect in the decoder; leave it out': {
    'norm': 'pre',
    'decoder': {'fusion': 'mudd', 'mudd': {'memory_ways': 1}},
  },
  "memory_ways: 2 and model.decoder.shortcut.where='both' both replace": {
    'norm': 'pre',
    'encoder': {'fusion': 'mudd', 'mudd': {'memory_ways': 2}},
    'decoder': {'shortcut': {'source': 'lexical', 'where': 'both'}},
  },
  "encoder.fusion: 'mudd' needs model.norm='pre', got 'post'": {
    'encoder': {'fusion': 'mudd'}
  },
  "encoder.fusion: 'hyper_connections' needs model.norm='pre', got 'rezero'": {
    'norm': 'rezero',
    'encoder': {'fusion': 'hyper_connections'},
  },
  'encoder.hyper.streams: must be >= 2, got 1': {
    'norm': 'pre',
    'encoder': {'fusion': 'hyper_connections', 'hyper': {'streams': 1}},
  },
  "hyper.rounds: 5 has no effect with hyper.kind='dynamic'": {
    'norm': 'pre',
    'encoder': {'fusion': 'hyper_connections', 'hyper': {'rounds': 5}},
  },
  'shortcut.author_compat: starts the residual from the normalised input': {
    'norm': 'pre',
    'encoder': {
      'fusion': 'hyper_connections',
      'shortcut': {'source': 'lexical', 'author_compat': True},
    },
  },
  "model.residual: 'b2t' needs model.norm='post', got 'pre'": {
    'norm': 'pre',
    'residual': 'b2t',
  },
  "model.residual: 'deepnorm' and skip_gains=True both replace": {
    'residual': 'deepnorm',
    'decoder': {'skip_gains': True},
  },
  "model.residual: 'deepnorm' needs model.norm='post', got 'rezero'": {
    'norm': 'rezero',
    'residual': 'deepnorm',
  },
  'attention_residual.heads: must divide model.width 512, got 3': {
    'norm': 'pre',
    'encoder': {
      'fusion': 'attention_residuals',
      'attention_residual': {'heads': 3},
    },
  },
  'block: 13 is more than the 12 sublayers of the stack; at most 12': {
    'norm': 'pre',
    'encoder': {
      'fusion': 'attention_residuals',
      'attention_residual': {'block': 13},
    },
  },
  'block: 7 is more than the 6 layers of the stack; at most 6': {
    'norm': 'pre',
    'decoder': {
      'fusion': 'attention_residuals',
      'attention_residual': {'block': 7, 'sources': 'layer'},
    },
  },
  "with fusion='attention_residuals' the residual is not one array": {
    'norm': 'pre',
    'decoder': {
      'fusion': 'attention_residuals',
      'shortcut': {'source': 'lexical', 'author_compat': True},
    },
  },
  "model.scan_layers: needs.*alike.*fusion='attention_residuals'": {
    'norm': 'pre',
    'scan_layers': True,
    'encoder': {'fusion': 'attention_residuals'},
  },
  "decoder.shortcut.source: 'lexical' and fusion='mudd' with mudd.ways=4": {
    'norm': 'pre',
    'decoder': {'fusion': 'mudd', 'shortcut': {'source': 'lexical'}},
  },
  "encoder.fusion: 'grn' needs model.norm='pre', got 'post'": {
    'encoder': {'fusion': 'grn'}
  },
  'encoder.grn.last: 5 leaves nothing to sum in 6 layers; at most 4': {
    'norm': 'pre',
    'encoder': {'fusion': 'grn', 'grn': {'last': 5}},
  },
  'encoder.grn.last: 1 leaves nothing to sum in 1 layers; at most 0': {
    'norm': 'pre',
    'encoder': {'fusion': 'grn', 'grn': {'last': 1}},
    'encoder_layers': 1,
  },
  'encoder.grn.ways: must be 1, 3 or 4, got 2': {
    'norm': 'pre',
    'encoder': {'fusion': 'grn', 'grn': {'ways': 2}},
  },
  "shortcut.source: 'lexical' and fusion='grn' with grn.ways=3 both": {
    'norm': 'pre',
    'encoder': {
      'fusion': 'grn',
      'grn': {'ways': 3},
      'shortcut': {'source': 'lexical'},
    },
  },
  "value_residual.kind: 'identity' and fusion='grn' with grn.ways=4 both": {
    'norm': 'pre',
    'encoder': {
      'fusion': 'grn',
      'grn': {'ways': 4},
      'value_residual': {'kind': 'identity'},
    },
  },
  "value_residual.kind: 'identity' and fusion='mudd' with mudd.ways=4 both": {
    'norm': 'pre',
    'encoder': {'fusion': 'mudd', 'value_residual': {'kind': 'identity'}},
  },
  "multi-layer attention .*fusion='grn'": {
    'norm': 'pre',
    'decoder': {'fusion': 'grn', 'multi_layer': {'layers': 2}},
  },
  "'non_lexical' .*fusion='grn'": {
    'norm': 'pre',
    'decoder': {'fusion': 'grn', 'shortcut': {'source': 'non_lexical'}},
  },
  "model.scan_layers: needs layers that are all alike.*fusion='grn'": {
    'norm': 'pre',
    'scan_layers': True,
    'encoder': {'fusion': 'grn'},
  },
  "model.scan_layers: needs layers that are all alike.*fusion='mudd'": {
    'norm': 'pre',
    'scan_layers': True,
    'encoder': {'fusion': 'mudd'},
  },
  "dlcl.first: 'learned' has no effect with model.norm='pre'": {
    'norm': 'pre',
    'encoder': {'fusion': 'dlcl', 'dlcl': {'first': 'learned'}},
  },
  "dlcl.first: 'learned' has no effect with .*normalize='softmax'": {
    'encoder': {
      'fusion': 'dlcl',
      'dlcl': {'first': 'learned', 'normalize': 'softmax'},
    },
  },
  "embedding: True has no effect with .*kind='replace'": {
    'norm': 'pre',
    'encoder': {
      'fusion': 'attention_residuals',
      'attention_residual': {'embedding': True},
    },
  },
  "multi-layer attention .*fusion='dlcl'": {
    'decoder': {'fusion': 'dlcl', 'multi_layer': {'layers': 2}}
  },
  "'non_lexical' .*fusion='dlcl'": {
    'decoder': {'fusion': 'dlcl', 'shortcut': {'source': 'non_lexical'}}
  },
  "encoder.shortcut.where: 'both' needs cross-attention": {
    'encoder': {'shortcut': {'source': 'lexical', 'where': 'both'}}
  },
  "where: 'cross' reads the encoder.*non_lexical": {
    'decoder': {'shortcut': {'source': 'non_lexical', 'where': 'cross'}}
  },
  "author_compat: .*model.norm='post'": {
    'decoder': {'shortcut': {'source': 'lexical', 'author_compat': True}}
  },
  "model.scan_layers: .*model.decoder with fusion='hierarchical'": {
    'decoder': {'fusion': 'hierarchical'},
    'scan_layers': True,
  },
  'model.scan_layers: .*multi_layer.layers > 1': {
    'encoder': {'multi_layer': {'layers': 2}},
    'scan_layers': True,
  },
  "encoder.start: 'baseline' is about a fusion": {
    'encoder': {'start': 'baseline'}
  },
  "decoder.start: 'baseline' cannot be exact with .*author_compat": {
    'decoder': {
      'start': 'baseline',
      'shortcut': {'source': 'lexical', 'author_compat': True},
    },
    'norm': 'pre',
  },
  "routing.residual: form='paper' makes it 'none', got 'all'": {
    'encoder': {
      'fusion': 'em_routing',
      'routing': {'form': 'paper', 'residual': 'all'},
    }
  },
  'routing.agreement_scale: must be > 0, got 0.0': {
    'encoder': {'routing': {'agreement_scale': 0.0}}
  },
  'routing.capsules: must divide model.width 512, got 3': {
    'encoder': {'fusion': 'em_routing', 'routing': {'capsules': 3}}
  },
  'multi_layer.layers: 6 is more than any of 6 layers.*at most 5': {
    'encoder': {'multi_layer': {'layers': 6}}
  },
  'routing.iterations: must be >= 1, got 0': {
    'encoder': {'routing': {'iterations': 0}}
  },
  'routing.variance_floor: must be > 0': {
    'encoder': {'routing': {'variance_floor': 0.0}}
  },
  'transparent.dropout: must be < 1': {
    'encoder': {'transparent': {'dropout': 1.0}}
  },
  'inference_groups: .*within 1:3, got .2:4': {
    'decoder': {'fusion': 'gtrans', 'gtrans': {'inference_groups': '2:4'}}
  },
  "last_group: 'floor' leaves no group of 7 among 6 layers": {
    'decoder': {
      'fusion': 'gtrans',
      'gtrans': {'group_size': 7, 'last_group': 'floor'},
    }
  },
  'model.encoder.fusion: must be .*none': {'encoder': {'fusion': 'capsules'}},
  'model.encoder.rooting: no such field': {'encoder': {'rooting': {}}},
}


@pytest.mark.parametrize('message', _REFUSED)
def test_refused(message):
  with pytest.raises(InputError, match=message) as error:
    from_dict({'model': _REFUSED[message]})
  assert '\n' not in str(error.value)


def test_a_config_comes_back_from_its_json_form():
  model = ModelConfig(
    encoder=from_dict({'model': {'encoder': {'fusion': 'dlcl'}}}).model.encoder
  )
  config = dataclasses.replace(ExperimentConfig(), model=model)
  assert from_dict(to_dict(config)) == config


@pytest.mark.parametrize(
  ('text', 'expected'), [('1:1', (0, 1)), ('2:3', (1, 3)), ('1:3', (0, 3))]
)
def test_groups_are_counted_from_one(text, expected):
  assert parse_groups(text, 3, 'f') == expected


@pytest.mark.parametrize('text', ['0:1', '2:1', '1', '1:4', 'a:b', '1:2:3'])
def test_bad_groups(text):
  with pytest.raises(InputError, match="'first:last' within 1:3"):
    parse_groups(text, 3, 'f')

"""Values and pairs of options that make no sense are refused by name."""

import dataclasses
import re

import pytest

from fusion_jax.config import ExperimentConfig, ModelConfig
from fusion_jax.config.serialization import from_dict, to_dict
from fusion_jax.errors import InputError

_REFUSED = {
  "decoder.fusion: 'transparent' does not fit the decoder": {
    'decoder': {'fusion': 'transparent'}
  },
  "encoder.attention: 'multi_layer' reads the layers below, whose "
  "place fusion='hierarchical' takes": {
    'encoder': {'fusion': 'hierarchical', 'attention': 'multi_layer'}
  },
  'encoder.options.dilation: 3 leaves nothing to sum in 2 layers': {
    'encoder': {'fusion': 'dlcl', 'options': {'dilation': 3}},
    'encoder_layers': 2,
  },
  'decoder.options.period: 7 leaves nothing to sum in 6 layers': {
    'decoder': {'fusion': 'dlcl', 'options': {'period': 7}}
  },
  "encoder.start: 'baseline' cannot be exact with "
  "attention_options.kind='sparse', whose weights are fixed": {
    'encoder': {
      'start': 'baseline',
      'attention': 'value_residual',
      'attention_options': {'kind': 'sparse'},
    }
  },
  "decoder.start: 'baseline' cannot be exact with "
  "attention_options.kind='shared', whose layers have no values": {
    'decoder': {
      'start': 'baseline',
      'attention': 'value_residual',
      'attention_options': {'kind': 'shared'},
    }
  },
  "encoder.attention_options.where: 'both' has no effect in the encoder": {
    'encoder': {
      'attention': 'value_residual',
      'attention_options': {'kind': 'identity', 'where': 'both'},
    }
  },
  'scan_layers: needs layers that are all alike, which model.decoder '
  "with attention='value_residual' has not": {
    'scan_layers': True,
    'decoder': {
      'attention': 'value_residual',
      'attention_options': {'kind': 'identity'},
    },
  },
  "encoder.skip_gains: True and fusion='hyper_connections' both "
  'replace the residual': {
    'norm': 'pre',
    'encoder': {'fusion': 'hyper_connections', 'skip_gains': True},
  },
  "decoder.skip_gains: True and fusion='attention_residuals' both "
  'replace the residual': {
    'norm': 'pre',
    'decoder': {'fusion': 'attention_residuals', 'skip_gains': True},
  },
  "encoder.fusion: 'surface_fusion' does not fit the encoder": {
    'encoder': {'fusion': 'surface_fusion'}
  },
  "decoder.options.weight: 0.5 has no effect with kind='soft'": {
    'decoder': {
      'fusion': 'surface_fusion',
      'options': {'kind': 'soft', 'weight': 0.5},
    }
  },
  "decoder.options.combine: 'arithmetic' has no effect with kind='soft'": {
    'decoder': {
      'fusion': 'surface_fusion',
      'options': {'kind': 'soft', 'combine': 'arithmetic'},
    }
  },
  "decoder.options.temperature: 5.0 has no effect with kind='learned'": {
    'decoder': {
      'fusion': 'surface_fusion',
      'options': {'kind': 'learned', 'temperature': 5.0},
    }
  },
  "decoder.options.least: 0.2 has no effect with kind='hard'": {
    'decoder': {'fusion': 'surface_fusion', 'options': {'least': 0.2}}
  },
  'decoder.options.weight: 0.8 is not between least=0.3 and 1 - 0.3': {
    'decoder': {
      'fusion': 'surface_fusion',
      'options': {'kind': 'learned', 'least': 0.3},
    }
  },
  'decoder.options.weight: must be < 1, got 1.0': {
    'decoder': {'fusion': 'surface_fusion', 'options': {'weight': 1.0}}
  },
  'decoder.options.kind: no such option': {
    'decoder': {'fusion': 'gtrans', 'options': {'kind': 'soft'}}
  },
  'encoder.options.ways: 0 leaves nothing to sum': {
    'norm': 'pre',
    'encoder': {'fusion': 'mudd', 'options': {'ways': 0}},
  },
  'decoder.options.ways: 0 leaves nothing to sum': {
    'norm': 'pre',
    'decoder': {'fusion': 'mudd', 'options': {'ways': 0}},
  },
  'decoder.options.memory_ways: 1 has no effect in the decoder': {
    'norm': 'pre',
    'decoder': {'fusion': 'mudd', 'options': {'memory_ways': 1}},
  },
  'encoder.options.memory_ways: 2 and shortcuts into the '
  'cross-attention of the decoder both replace its keys and values': {
    'norm': 'pre',
    'encoder': {'fusion': 'mudd', 'options': {'memory_ways': 2}},
    'decoder': {
      'attention': 'shortcut',
      'attention_options': {'where': 'both'},
    },
  },
  "encoder.fusion: 'mudd' needs model.norm='pre', got 'post'": {
    'encoder': {'fusion': 'mudd'}
  },
  "encoder.fusion: 'hyper_connections' needs model.norm='pre', got 'rezero'": {
    'norm': 'rezero',
    'encoder': {'fusion': 'hyper_connections'},
  },
  'encoder.options.streams: must be >= 2, got 1': {
    'norm': 'pre',
    'encoder': {'fusion': 'hyper_connections', 'options': {'streams': 1}},
  },
  "encoder.options.rounds: 5 has no effect with kind='dynamic'": {
    'norm': 'pre',
    'encoder': {'fusion': 'hyper_connections', 'options': {'rounds': 5}},
  },
  'encoder.attention_options.author_compat: starts the residual from '
  "the normalised input, and with fusion='hyper_connections'": {
    'norm': 'pre',
    'encoder': {
      'fusion': 'hyper_connections',
      'attention': 'shortcut',
      'attention_options': {'author_compat': True},
    },
  },
  "residual: 'b2t' needs model.norm='post', got 'pre'": {
    'norm': 'pre',
    'residual': 'b2t',
  },
  "residual: 'deepnorm' and skip_gains=True both replace the sum": {
    'residual': 'deepnorm',
    'decoder': {'skip_gains': True},
  },
  "residual: 'deepnorm' needs model.norm='post', got 'rezero'": {
    'norm': 'rezero',
    'residual': 'deepnorm',
  },
  'encoder.options.heads: must divide model.width 512, got 3': {
    'norm': 'pre',
    'encoder': {'fusion': 'attention_residuals', 'options': {'heads': 3}},
  },
  'encoder.options.block: 13 is more than the 12 sublayers of the stack': {
    'norm': 'pre',
    'encoder': {'fusion': 'attention_residuals', 'options': {'block': 13}},
  },
  'decoder.options.block: 7 is more than the 6 layers of the stack': {
    'norm': 'pre',
    'decoder': {
      'fusion': 'attention_residuals',
      'options': {'block': 7, 'sources': 'layer'},
    },
  },
  'decoder.attention_options.author_compat: starts the residual from '
  "the normalised input, and with fusion='attention_residuals'": {
    'norm': 'pre',
    'decoder': {
      'fusion': 'attention_residuals',
      'attention': 'shortcut',
      'attention_options': {'author_compat': True},
    },
  },
  'scan_layers: needs layers that are all alike, which model.encoder '
  "with fusion='attention_residuals' has not": {
    'norm': 'pre',
    'scan_layers': True,
    'encoder': {'fusion': 'attention_residuals'},
  },
  "decoder.attention: 'shortcut' and fusion='mudd' with "
  'options.ways=4 both replace the keys and values': {
    'norm': 'pre',
    'decoder': {'fusion': 'mudd', 'attention': 'shortcut'},
  },
  "encoder.fusion: 'grn' needs model.norm='pre', got 'post'": {
    'encoder': {'fusion': 'grn'}
  },
  'encoder.options.last: 5 leaves nothing to sum in 6 layers': {
    'norm': 'pre',
    'encoder': {'fusion': 'grn', 'options': {'last': 5}},
  },
  'encoder.options.last: 1 leaves nothing to sum in 1 layers': {
    'norm': 'pre',
    'encoder': {'fusion': 'grn', 'options': {'last': 1}},
    'encoder_layers': 1,
  },
  'encoder.options.ways: must be 1, 3 or 4, got 2': {
    'norm': 'pre',
    'encoder': {'fusion': 'grn', 'options': {'ways': 2}},
  },
  "encoder.attention: 'shortcut' and fusion='grn' with "
  'options.ways=3 both replace the keys and values': {
    'norm': 'pre',
    'encoder': {
      'fusion': 'grn',
      'options': {'ways': 3},
      'attention': 'shortcut',
    },
  },
  "encoder.attention: 'value_residual' and fusion='grn' with "
  'options.ways=4 both replace the values of attention': {
    'norm': 'pre',
    'encoder': {
      'fusion': 'grn',
      'options': {'ways': 4},
      'attention': 'value_residual',
      'attention_options': {'kind': 'identity'},
    },
  },
  "encoder.attention: 'value_residual' and fusion='mudd' with "
  'options.ways=4 both replace the values of attention': {
    'norm': 'pre',
    'encoder': {
      'fusion': 'mudd',
      'attention': 'value_residual',
      'attention_options': {'kind': 'identity'},
    },
  },
  "decoder.attention: 'multi_layer' reads the layers below, whose "
  "place fusion='grn' takes": {
    'norm': 'pre',
    'decoder': {'fusion': 'grn', 'attention': 'multi_layer'},
  },
  "decoder.attention_options.source: 'non_lexical' reads the layer "
  "below the last, whose place fusion='grn' takes": {
    'norm': 'pre',
    'decoder': {
      'fusion': 'grn',
      'attention': 'shortcut',
      'attention_options': {'source': 'non_lexical'},
    },
  },
  'scan_layers: needs layers that are all alike, which model.encoder '
  "with fusion='grn' has not": {
    'norm': 'pre',
    'scan_layers': True,
    'encoder': {'fusion': 'grn'},
  },
  'scan_layers: needs layers that are all alike, which model.encoder '
  "with fusion='mudd' has not": {
    'norm': 'pre',
    'scan_layers': True,
    'encoder': {'fusion': 'mudd'},
  },
  "encoder.options.first: 'learned' has no effect with model.norm='pre'": {
    'norm': 'pre',
    'encoder': {'fusion': 'dlcl', 'options': {'first': 'learned'}},
  },
  "encoder.options.first: 'learned' has no effect with "
  "model.encoder.options.normalize='softmax'": {
    'encoder': {
      'fusion': 'dlcl',
      'options': {'first': 'learned', 'normalize': 'softmax'},
    }
  },
  'encoder.options.embedding: True has no effect with '
  "kind='replace', whose sources always have it": {
    'norm': 'pre',
    'encoder': {
      'fusion': 'attention_residuals',
      'options': {'embedding': True},
    },
  },
  "decoder.attention: 'multi_layer' reads the layers below, whose "
  "place fusion='dlcl' takes": {
    'decoder': {'fusion': 'dlcl', 'attention': 'multi_layer'}
  },
  "decoder.attention_options.source: 'non_lexical' reads the layer "
  "below the last, whose place fusion='dlcl' takes": {
    'decoder': {
      'fusion': 'dlcl',
      'attention': 'shortcut',
      'attention_options': {'source': 'non_lexical'},
    }
  },
  "encoder.attention_options.where: 'both' needs cross-attention, "
  'which the encoder lacks': {
    'encoder': {'attention': 'shortcut', 'attention_options': {'where': 'both'}}
  },
  "decoder.attention_options.where: 'cross' reads the encoder's "
  "embeddings, which source='non_lexical' does not": {
    'decoder': {
      'attention': 'shortcut',
      'attention_options': {'source': 'non_lexical', 'where': 'cross'},
    }
  },
  'decoder.attention_options.author_compat: is about the norm before '
  'attention': {
    'decoder': {
      'attention': 'shortcut',
      'attention_options': {'author_compat': True},
    }
  },
  'scan_layers: needs layers that are all alike, which model.decoder '
  "with fusion='hierarchical' has not": {
    'decoder': {'fusion': 'hierarchical'},
    'scan_layers': True,
  },
  'scan_layers: needs layers that are all alike, which model.encoder '
  "with attention='multi_layer' has not": {
    'encoder': {'attention': 'multi_layer'},
    'scan_layers': True,
  },
  "encoder.start: 'baseline' is about a fusion, and there is none": {
    'encoder': {'start': 'baseline'}
  },
  'decoder.attention_options.author_compat: starts the residual from '
  "the normalised input, so that start='baseline' cannot be exact": {
    'decoder': {
      'start': 'baseline',
      'attention': 'shortcut',
      'attention_options': {'author_compat': True},
    },
    'norm': 'pre',
  },
  "encoder.options.residual: form='paper' makes it 'none', got 'all'": {
    'encoder': {
      'fusion': 'em_routing',
      'options': {'form': 'paper', 'residual': 'all'},
    }
  },
  'encoder.options.agreement_scale: must be > 0, got 0.0': {
    'encoder': {
      'fusion': 'dynamic_routing',
      'options': {'agreement_scale': 0.0},
    }
  },
  'encoder.options.capsules: must divide model.width 512, got 3': {
    'encoder': {'fusion': 'em_routing', 'options': {'capsules': 3}}
  },
  'encoder.attention_options.layers: 6 is more than any of 6 layers '
  'has below it': {
    'encoder': {'attention': 'multi_layer', 'attention_options': {'layers': 6}}
  },
  'encoder.options.iterations: must be >= 1, got 0': {
    'encoder': {'fusion': 'dynamic_routing', 'options': {'iterations': 0}}
  },
  'encoder.options.variance_floor: must be > 0, got 0.0': {
    'encoder': {'fusion': 'em_routing', 'options': {'variance_floor': 0.0}}
  },
  'encoder.options.dropout: must be < 1, got 1.0': {
    'encoder': {'fusion': 'transparent', 'options': {'dropout': 1.0}}
  },
  "decoder.options.inference_groups: must be 'first:last' within "
  "1:3, got '2:4'": {
    'decoder': {'fusion': 'gtrans', 'options': {'inference_groups': '2:4'}}
  },
  "decoder.options.last_group: 'floor' leaves no group of 7 among 6 layers": {
    'decoder': {
      'fusion': 'gtrans',
      'options': {'group_size': 7, 'last_group': 'floor'},
    }
  },
  "got 'capsules' (a scheme of your own needs --user_dir)": {
    'encoder': {'fusion': 'capsules'}
  },
  'encoder.rooting: no such field': {'encoder': {'rooting': {}}},
  "encoder.options.bois: no such option; must be 'factored', 'hidden'": {
    'encoder': {'fusion': 'linear', 'options': {'bois': False}}
  },
  'encoder.options.hidden: no such option; there are none': {
    'encoder': {'options': {'hidden': 4}}
  },
  'encoder.attention_options.kind: no such option': {
    'encoder': {
      'attention': 'shortcut',
      'attention_options': {'kind': 'shared'},
    }
  },
  "encoder.attention: must be 'none', 'multi_layer', 'shortcut' or": {
    'encoder': {'attention': 'shortcuts'}
  },
}


@pytest.mark.parametrize('message', _REFUSED)
def test_refused(message):
  with pytest.raises(InputError, match=re.escape(message)) as error:
    from_dict({'model': _REFUSED[message]})
  assert '\n' not in str(error.value)


def test_a_config_comes_back_from_its_json_form():
  model = ModelConfig(
    encoder=from_dict({'model': {'encoder': {'fusion': 'dlcl'}}}).model.encoder
  )
  config = dataclasses.replace(ExperimentConfig(), model=model)
  assert from_dict(to_dict(config)) == config

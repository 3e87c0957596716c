"""The command `fusion-jax`: one program for each thing to do with a model.

    fusion-jax train --config=quickstart --workdir=DIR
    fusion-jax decode --workdir=DIR <source.txt >translations.txt

`fusion-jax COMMAND --help` lists the flags of a command.
"""

import importlib

from fusion_jax import __version__
from fusion_jax.bounds import choice_fault
from fusion_jax.errors import InputError
from fusion_jax.startup import one_line_errors, run_program

# Each command, the module whose `main` it runs, and what it does.
COMMANDS = {
  'train': ('cli.train', 'train a model, or resume a training'),
  'decode': ('cli.decode', 'translate text, score or certify translations'),
  'fetch': ('data.fetch', 'download a public corpus'),
  'prepare': ('data.prepare', 'prepare the corpus of a config'),
  'compare': ('evaluation.compare', 'compare the translations of systems'),
  'study': ('study.__main__', 'compare contestants over seeds'),
  'contrastive': (
    'evaluation.contrastive',
    'ask a model for the better of two translations',
  ),
  'analyse': ('analysis.__main__', 'view what a model has learned'),
  'report': ('analysis.report.__main__', 'write a page about runs'),
  'export': ('tools.export.__main__', 'export a model for other runtimes'),
  'import': ('tools.importers.__main__', 'read a model of another program'),
  'average': ('tools.average_checkpoints', 'save the mean of checkpoints'),
  'schemes': ('tools.scheme_sizes', 'list the schemes and their sizes'),
  'options': ('tools.options', 'list the options of a config'),
  'sizes': ('tools.model_sizes', 'list the parameters of a model'),
}


def _usage() -> str:
  width = max(map(len, COMMANDS))
  listed = (f'  {name:{width}}  {text}' for name, (_, text) in COMMANDS.items())
  return '\n'.join((__doc__.rstrip(), '', *listed))


@one_line_errors
def main(argv: list[str]) -> int:
  """Run the command that the first argument names."""
  name, *flags = argv or ['--help']
  if name in ('--help', '-h'):
    print(_usage())
  elif name == '--version':
    print(f'fusion_jax {__version__}')
  elif name in COMMANDS:
    program = importlib.import_module(f'fusion_jax.{COMMANDS[name][0]}')
    return program.main(flags)
  else:
    raise InputError(f'fusion-jax: the command {choice_fault(name, COMMANDS)}')
  return 0


if __name__ == '__main__':
  run_program(main)

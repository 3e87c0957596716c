"""The command `fusion-jax`: one program for each thing to do with a model.

    fusion-jax train --config=quickstart --workdir=DIR
    fusion-jax decode --workdir=DIR <source.txt >translations.txt

`fusion-jax COMMAND --help` lists the flags of a command.
"""

import importlib
import signal

# Each command, the module whose `main` it runs, and what it does.
COMMANDS = {
  'train': ('cli.train', 'train a model, or resume a training'),
  'decode': ('cli.decode', 'translate text, score or certify translations'),
  'fetch': ('data.fetch', 'download a public corpus'),
  'prepare': ('data.prepare', 'prepare the corpus of a config'),
  'compare': ('evaluation.compare', 'compare the translations of systems'),
  'study': ('studies.__main__', 'compare contestants over seeds'),
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


def command(*name: str) -> None:
  """Run the command line, or the command that is named with its flags."""
  # Until the program handles it: no traceback of what is being imported. Where
  # it is ignored, as in the background of a script, it stays so.
  if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
  from fusion_jax.startup import run_program

  run_program(lambda argv: main([*name, *argv]))


def main(argv: list[str]) -> int:
  """Run the command that the first argument names."""
  from fusion_jax.startup import one_line_errors

  return one_line_errors(_run)(argv)


def _run(argv: list[str]) -> int:
  from fusion_jax import __version__
  from fusion_jax.bounds import choice_fault
  from fusion_jax.errors import InputError

  name, *flags = argv or ['--help']
  if name in COMMANDS:
    program = importlib.import_module(f'fusion_jax.{COMMANDS[name][0]}')
    return program.main(flags)
  if name == '--version':
    print(f'fusion_jax {__version__}')
  elif name in ('--help', '-h'):
    print(__doc__.rstrip(), end='\n\n')
    for listed, (_, text) in COMMANDS.items():
      print(f'  {listed:{max(map(len, COMMANDS))}}  {text}')
  else:
    raise InputError(f'fusion-jax: the command {choice_fault(name, COMMANDS)}')
  return 0


if __name__ == '__main__':
  command()

"""The installed command, which imports nothing before it handles Ctrl-C."""

import signal


def command(*name: str) -> None:
  """Run the command line, or the command that is named with its flags."""
  # Until the program handles it: no traceback of what is being imported. Where
  # it is ignored, as in the background of a script, it stays so.
  if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
  from fusion_jax.__main__ import main
  from fusion_jax.startup import run_program

  run_program(lambda argv: main([*name, *argv]))

"""Errors that are shown to the user as one line."""


class InputError(Exception):
  """A mistake in the user's input: a file, a flag, a config, a checkpoint.

  The message is one line: what is wrong, where, and what would be right.
  """

  def __str__(self) -> str:
    """Return the message with unprintable characters escaped."""
    return ''.join(
      each if each.isprintable() else repr(each)[1:-1]
      for each in super().__str__()
    )


class CheckFailed(Exception):
  """A check that the user asked for has failed.

  The message is one line: what does not hold, and where this was seen.
  """


def first_line(error: BaseException) -> str:
  """Return the first line of an exception's message, or its type's name."""
  return (str(error).strip() or type(error).__name__).splitlines()[0]


def require(condition: bool, field: str, message: str) -> None:
  """Refuse a config value that breaks a condition."""
  if not condition:
    raise InputError(f'config.{field}: {message}')

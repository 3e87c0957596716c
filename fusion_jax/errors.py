"""What the user did wrong, told in one line."""


class InputError(Exception):
  """A mistake in what the user gave: a file, a flag, a config, a checkpoint.

  The message is one line: what is wrong, where, and what would be right.
  """

  def __str__(self) -> str:
    """The message; what is no printable character of it is written out."""
    return ''.join(
      each if each.isprintable() else repr(each)[1:-1]
      for each in super().__str__()
    )


class CheckFailed(Exception):
  """What the user asked to have checked does not hold.

  The message is one line: what does not hold, and where it is seen.
  """


def first_line(error: BaseException) -> str:
  """What an exception says, cut to one line."""
  return (str(error).strip() or type(error).__name__).splitlines()[0]


def require(condition: bool, field: str, message: str) -> None:
  """Refuses a value of a config.

  Args:
    condition: what must hold.
    field: the value's dotted name.
    message: what is wrong and what would be right.

  Raises:
    InputError: it does not hold.
  """
  if not condition:
    raise InputError(f'config.{field}: {message}')

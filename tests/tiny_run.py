"""Fields of a run that takes seconds, and flags of its processes."""

import socket

TINY = {
  'data.embedded_pairs': 600,
  'data.tokenizer.vocabulary_size': 300,
  'data.batch.tokens': 512,
  'data.batch.shapes': 1,
  'model.width': 16,
  'model.filter': 32,
  'model.heads': 2,
  'model.encoder_layers': 1,
  'model.decoder_layers': 1,
  'model.dropout': 0.1,
  'training.log_every': 1,
}


def process_flags(count: int) -> list[list[str]]:
  """The flags of each of so many processes on this machine."""
  with socket.socket() as free:
    free.bind(('127.0.0.1', 0))
    port = free.getsockname()[1]
  together = [f'--coordinator=127.0.0.1:{port}', f'--processes={count}']
  return [[*together, f'--process={index}'] for index in range(count)]

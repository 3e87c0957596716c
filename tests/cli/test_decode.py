"""The program decode with a model that copies its input."""

import gzip
import io
import json
import logging
import lzma
import sys
from pathlib import Path

import pytest
from copying import make_run, make_tokenizer
from programs import one_line

from fusion_jax.cli import decode as program
from fusion_jax.cli import run as run_module
from fusion_jax.decoding import score, translate

TEXT = 'the cat sat on the mat\n\na dog and a cat\n'


@pytest.fixture(scope='module')
def trained():
  return make_run(make_tokenizer())


@pytest.fixture
def decode(trained, monkeypatch, tmp_path):
  """Runs the program in a folder with `source` and gives its exit code."""
  monkeypatch.setattr(run_module, 'load_run', lambda *_: trained)
  monkeypatch.chdir(tmp_path)
  Path('source').write_text(TEXT)
  return lambda *flags: program.main(['--workdir=run', *flags])


def test_files_in_and_out_with_scores_on_stdout(decode, capsys):
  Path('reference').write_text(TEXT)
  code = decode('--input=source', '--output=out', '--reference=reference')
  assert code == 0
  assert Path('out').read_text() == TEXT
  bleu, chrf = capsys.readouterr().out.splitlines()
  assert bleu.startswith('BLEU|nrefs:1|case:mixed|eff:no|tok:13a')
  assert ' = 100.00 ' in bleu
  assert chrf.startswith('chrF2|')
  assert chrf.endswith('= 100.00')


def test_comet_beside_the_other_scores(decode, capsys, monkeypatch):
  def load_comet(name):
    return lambda *texts: f'{name} of {[len(text) for text in texts]}'

  monkeypatch.setattr(run_module, 'load_comet', load_comet)
  flags = '--input=source', '--output=out', '--reference=source'
  assert decode(*flags, '--comet=small') == 0
  assert capsys.readouterr().out.splitlines()[2] == 'small of [3, 3, 3]'


def test_translations_on_stdout_put_scores_on_stderr(decode, capfdbinary):
  Path('reference').write_text(TEXT)
  assert decode('--input=source', '--reference=reference') == 0
  out, err = capfdbinary.readouterr()
  assert out == TEXT.encode()
  assert b'BLEU|' in err


def test_compressed_files_in_and_out(decode, capsys):
  for name in ('input.gz', 'reference.gz'):
    Path(name).write_bytes(gzip.compress(TEXT.encode()))
  Path('prefix.xz').write_bytes(lzma.compress(b'the cat\n\n\n'))
  flags = '--input=input.gz', '--prefix=prefix.xz', '--reference=reference.gz'
  assert decode(*flags, '--output=out.xz') == 0
  assert lzma.decompress(Path('out.xz').read_bytes()) == TEXT.encode()
  assert ' = 100.00 ' in capsys.readouterr().out


def test_an_empty_file_gives_an_empty_file(decode):
  Path('source').write_text('')
  assert decode('--input=source', '--output=out') == 0
  assert Path('out').read_bytes() == b''


def test_n_best_lines(decode):
  flags = ('--input=source', '--output=out', '--beam_size=2', '--n_best=2')
  assert decode(*flags, '--length_penalty=none') == 0
  lines = [line.split(' ||| ') for line in Path('out').read_text().splitlines()]
  assert [index for index, _, _ in lines] == ['0', '0', '1', '2', '2']
  assert [lines[at][1] for at in (0, 2, 3)] == TEXT.splitlines()
  assert float(lines[0][2]) > float(lines[1][2])


@pytest.mark.parametrize(
  ('flags', 'message'),
  [
    (['--input=none'], 'none: cannot be read: No such file'),
    (['--input=bad.gz'], 'bad.gz: not a readable .gz file (Not a gzipped'),
    (['--reference=cut.xz'], 'cut.xz: the compressed file is cut off'),
    (['--reference=short'], '3 lines to score but 1 reference lines'),
    (['--n_best=9', '--beam_size=2'], 'the beam size 2, got 9'),
    (
      ['--source_language=fr'],
      '--source_language=fr: run translates from en to de',
    ),
    (['--prefix=short'], 'short: 1 lines, fewer than source'),
    (['--input_format=json'], 'source, line 1: not JSON: '),
    (
      ['--search=beem'],
      "--search: must be 'beam' or 'sample', got 'beem'; did you mean 'beam'?",
    ),
    (
      ['--attention_output=a.align', '--alignment_unit=wrd'],
      "--alignment_unit: must be 'piece' or 'word', got 'wrd'; did you mean",
    ),
    (['--beam=3'], 'arguments: --beam=3; did you mean --beam_size?'),
    (['--comet=x'], '--comet needs --reference'),
    (['--attention_layers=last'], 'need --attention_output'),
    (
      ['--attention_output=a.jsonl', '--alignment_unit=word'],
      'end in .pharaoh',
    ),
    (['--per_token'], '--per_token needs --n_best, or --mode=score'),
    (['--attention_layers=x'], "or give 'mean', 'last', 'all'"),
    (['--combine=arithmetic'], '--combine: needs an ensemble, --workdir=DIR,'),
    (
      ['--min_length_extra=99'],
      'ask for 99 subwords or more for a source of 1, but max_length_ratio',
    ),
    (['--beam_size=99'], 'must be at most 40, the subwords of the target'),
    (['--weights=nan'], '--weights=nan: must be numbers with commas between'),
    (['--mode=score'], '--mode=score needs --target'),
    (['--output=none/out'], 'none/out: cannot be written: No such file'),
    (['--output=./source'], 'is the same file as --input=source'),
    (['--reference=out'], 'is the same file as --reference=out'),
    (
      [
        '--attention_output=a.jsonl',
        '--states_output=s.npz',
        '--output=./s.npz',
      ],
      '--output=./s.npz: is the same file as --states_output=s.npz',
    ),
  ],
)
def test_mistakes_end_in_one_line(decode, capsys, flags, message):
  Path('short').write_text('one\n')
  Path('bad.gz').write_text(TEXT)
  Path('cut.xz').write_bytes(lzma.compress(TEXT.encode())[:-12])
  before = sorted(Path().iterdir())
  assert decode('--input=source', '--output=out', *flags) == 2
  assert message in one_line(capsys.readouterr().err)
  assert sorted(Path().iterdir()) == before


def test_json_in_and_out(decode):
  objects = [{'source': line, 'id': i} for i, line in enumerate('ab\n')]
  objects[0]['source'] = 'a cat\non a mat'
  Path('json').write_text(''.join(json.dumps(one) + '\n' for one in objects))
  flags = '--input=json', '--input_format=json', '--output_format=json'
  assert decode(*flags, '--output=out', '--n_best=1') == 0
  found = [json.loads(line) for line in Path('out').read_text().splitlines()]
  assert [one['id'] for one in found] == [0, 1, 2]
  best = found[0]['translations'][0]
  assert best['text'] == 'a cat on a mat'
  assert ''.join(best['tokens'][:-1]).replace('▁', ' ').strip() == best['text']
  assert sum(best['token_log_probabilities']) == pytest.approx(
    best['log_probability']
  )


@pytest.mark.parametrize('output', ['', 'out', 'out.gz'])
def test_lines_of_a_pipe_before_a_broken_one_stay(
  decode, capfdbinary, monkeypatch, output
):
  lines = ['{"source": "the cat"}', '{"source": "a dog"}', '{"source": 3}']
  pipe = io.TextIOWrapper(io.BytesIO('\n'.join([*lines, lines[0]]).encode()))
  monkeypatch.setattr(sys, 'stdin', pipe)
  assert decode('--input_format=json', f'--output={output}') == 2
  out, err = capfdbinary.readouterr()
  message = b"error: stdin, line 3: 'source' must be text, got 3"
  if not output:
    assert err.endswith(message + b'\n')
  else:
    name = f'{output}.part'
    kept = f'; what was finished is in {Path(name).absolute()}\n'.encode()
    assert err.endswith(message + kept)
    out = Path(name).read_bytes()
    out = gzip.decompress(out) if output.endswith('.gz') else out
    assert not Path(output).exists()
  assert out == b'the cat\na dog\n'


@pytest.mark.parametrize(
  ('flags', 'faults'),
  [
    (
      ['--input=json', '--input_format=json'],
      [f"json, line {n}: 'source' must be text, got 3" for n in (2, 4, 6)],
    ),
    (
      ['--input=source', '--prefix=prefix'],
      [
        f"line {n}: its prefix '中' has characters that are not in the target "
        'vocabulary'
        for n in (2, 4, 6)
      ],
    ),
    (
      ['--mode=score', '--input=source', '--target=long'],
      [
        f'line {n}: its translation has 25 subwords, more than '
        'max_source_length 12; set it to 25 or more'
        for n in (2, 4, 6)
      ],
    ),
  ],
)
def test_all_lines_of_files_are_checked_first(
  decode, monkeypatch, capsys, flags, faults
):
  Path('source').write_text('a cat\n' * 9)
  long = 'the cat sat on the mat ' * 3
  for name, good, bad in (
    ('json', '{"source": "a"}', '{"source": 3}'),
    ('prefix', '', '中'),
    ('long', 'a cat', long),
  ):
    Path(name).write_text(f'{good}\n{bad}\n' * 4 + good + '\n')
  for module in (translate, score):  # Nothing may be computed.
    monkeypatch.setattr(module, 'on_mesh', lambda *_, **__: None)
  assert decode(*flags, '--max_source_length=12', '--output=out') == 2
  *_, line = capsys.readouterr().err.splitlines()
  assert line == f'error: {"; ".join(faults)}; 4 such faults in all'
  assert not list(Path().glob('out*'))


def test_a_character_that_does_not_fit_is_refused(decode, capsys):
  flags = '--input=source', '--output=out', '--max_source_length=1'
  assert decode(*flags) == 2
  assert "line 1: 't' alone has 2 subwords" in capsys.readouterr().err


def test_long_lines_are_translated_in_parts_of_the_given_length(decode, caplog):
  caplog.set_level(logging.INFO)
  flags = '--input=source', '--output=out', '--max_source_length=8'
  assert decode(*flags) == 0
  assert Path('out').read_text() == TEXT
  # One source length, and six numbers of rows up to 512.
  assert any('beam 4, 6 shapes' in line for line in caplog.messages)

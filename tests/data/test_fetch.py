"""Downloads from a server on this machine."""

import functools
import hashlib
import http.server
import io
import tarfile
import threading

import pytest

from fusion_jax.data import fetch
from fusion_jax.errors import InputError


class _Quiet(http.server.SimpleHTTPRequestHandler):
  def log_message(self, *_):
    pass


@pytest.fixture
def served(tmp_path):
  """A folder and the address that serves its files."""
  folder = tmp_path / 'served'
  folder.mkdir()
  handler = functools.partial(_Quiet, directory=folder)
  with http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler) as server:
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield folder, f'http://127.0.0.1:{server.server_port}'
    server.shutdown()
    thread.join()


def _digests(folder):
  return {
    path.name: f'sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}'
    for path in folder.iterdir()
  }


@pytest.fixture
def corpus(served, monkeypatch):
  """A corpus of two files that the server has."""
  folder, address = served
  for name in ('train.de', 'train.en'):
    (folder / name).write_text(f'{name}\n')
  listed = {'url': address, 'files': _digests(folder), 'licence': 'CC0'}
  monkeypatch.setitem(fetch.CORPORA, 'mine', listed)
  return folder, address


def test_files_are_downloaded_once(corpus, tmp_path):
  out = tmp_path / 'out'
  fetch.fetch('mine', out)
  assert sorted(path.name for path in out.iterdir()) == ['train.de', 'train.en']
  # What is there needs no server.
  fetch.fetch('mine', out, mirror='http://127.0.0.1:9')
  (out / 'train.de').write_text('changed')
  fetch.fetch('mine', out)
  assert (out / 'train.de').read_text() == 'train.de\n'


def test_a_file_with_other_content_is_refused(corpus, tmp_path):
  folder, _ = corpus
  (folder / 'train.en').write_text('other')
  with pytest.raises(InputError, match=r'train\.en: cannot be downloaded, or '):
    fetch.fetch('mine', tmp_path / 'out')
  assert not (tmp_path / 'out' / 'train.en').exists()


def test_a_folder_of_this_machine_is_a_mirror(corpus, tmp_path):
  folder, _ = corpus
  fetch.fetch('mine', tmp_path / 'out', mirror=f'file://{folder}')
  assert (tmp_path / 'out' / 'train.de').read_text() == 'train.de\n'


@pytest.mark.usefixtures('corpus')
@pytest.mark.parametrize(
  ('mirror', 'message'),
  [
    ('ftp:bad', '--mirror=ftp:bad: must begin with https, http or file'),
    ('folder', '--mirror=folder: must begin with https, http or file'),
    ('file:///none', ': cannot be read: No such file'),
    ('http://127.0.0.1:9', 'cannot be downloaded'),
  ],
)
def test_a_mirror_that_is_none_leaves_no_folder(
  tmp_path, capfd, mirror, message
):
  flags = ['mine', f'--output={tmp_path / "out"}', f'--mirror={mirror}']
  assert fetch.main(flags) == 2
  *others, line = capfd.readouterr().err.splitlines()
  assert message in line
  assert not any('Download' in other for other in others)
  assert not (tmp_path / 'out').exists()


def _archive(path, files):
  with tarfile.open(path, 'w:gz') as archive:
    for name, text in files.items():
      member = tarfile.TarInfo(f'de-en/{name}')
      member.size = len(text.encode())
      archive.addfile(member, io.BytesIO(text.encode()))


def _files(language):
  sets = (
    'TED.dev2010',
    'TEDX.dev2012',
    'TED.tst2010',
    'TED.tst2011',
    'TED.tst2012',
  )
  train = [f'<url>u</url>\n<title>{language} title</title>\n']
  train += [f' {language} {n} \n' for n in range(2, 50)]
  tests = {
    f'IWSLT14.{name}.de-en.{language}.xml': (
      '<?xml version="1.0"?>\n<doc docid="1">\n'
      f'<seg id="1"> {language} {name} a &amp; b </seg>\n</doc>\n'
    )
    for name in sets
  }
  return {f'train.tags.de-en.{language}': ''.join(train)} | tests


@pytest.fixture
def iwslt14(served, monkeypatch):
  """Writes the archive to the server, with its digest."""

  def write(files):
    folder, address = served
    _archive(folder / 'de-en.tgz', files)
    listed = {'url': address, 'files': _digests(folder), 'licence': ''}
    monkeypatch.setitem(fetch.CORPORA, 'iwslt14', listed)

  return write


def test_iwslt14_is_split_as_is_customary(iwslt14, tmp_path):
  iwslt14(_files('de') | _files('en'))
  fetch.fetch('iwslt14', tmp_path / 'out')
  read = {
    path.name: path.read_text().splitlines()
    for path in (tmp_path / 'out').iterdir()
    if path.suffix != '.tgz'
  }
  assert read['train.de'][:2] == ['de title', 'de 2']
  assert read['valid.en'] == ['en 23', 'en 46']
  assert len(read['train.de']) == len(read['train.en']) == 49 - 2
  assert len(read['test.de']) == 5
  assert read['test.en'][0] == 'en TED.dev2010 a & b'


def test_iwslt14_pairs_with_a_blank_side_are_dropped_whole(iwslt14, tmp_path):
  blank = {'train.tags.de-en.de': 'a\n\nc\n', 'train.tags.de-en.en': 'A\nB\n\n'}
  iwslt14(_files('de') | _files('en') | blank)
  fetch.fetch('iwslt14', tmp_path)
  found = [(tmp_path / f'train.{each}').read_text() for each in ('de', 'en')]
  assert found == ['a\n', 'A\n']

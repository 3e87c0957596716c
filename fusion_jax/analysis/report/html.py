"""Elements of an HTML page; all text in them is escaped when it is written."""

import base64
import json
import re
from collections.abc import Sequence
from typing import Any
from xml.etree.ElementTree import Element, tostring

# What a cell of a number is made of.
_NUMERIC = frozenset('0123456789+-.,% ')


def element(tag: str, *children: Element | str, **attributes: str) -> Element:
  """An element with text and elements in it, in order.

  Args:
    tag: its name.
    children: texts are escaped.
    attributes: `class_` is class, `aria_label` is aria-label.
  """
  names = {name.rstrip('_').replace('_', '-'): name for name in attributes}
  made = Element(tag, {html: attributes[own] for html, own in names.items()})
  last = None
  for child in children:
    if not isinstance(child, str):
      made.append(child)
      last = child
    elif last is None:
      made.text = (made.text or '') + child
    else:
      last.tail = (last.tail or '') + child
  return made


def document(root: Element) -> str:
  """The whole file of an `html` element."""
  return f'<!DOCTYPE html>\n{tostring(root, "unicode", "html")}\n'


def section(name: str, title: str, *children: Element | str) -> Element:
  """A part of the page that can be linked to as #name."""
  return element('section', element('h2', title), *children, id=name)


def table(
  heads: Sequence[str], rows: Sequence[Sequence[str]], label: str
) -> Element:
  """A table that scrolls by itself where it is too wide for the page.

  Args:
    heads: of the columns.
    rows: as long as `heads`; the first cell names the row.
    label: what it shows.
  """
  head = element('tr', *(element('th', name, scope='col') for name in heads))
  body = (element('tr', _name(row[0]), *map(_cell, row[1:])) for row in rows)
  made = element('table', element('thead', head), element('tbody', *body))
  return scrolling(made, label)


def scrolling(child: Element, label: str) -> Element:
  """A box that scrolls sideways, also by the keyboard."""
  return element(
    'div', child, class_='scroll', tabindex='0', role='region', aria_label=label
  )


def details(summary: str, *children: Element | str) -> Element:
  """What is shown when its summary is opened."""
  return element('details', element('summary', summary), *children)


def download(name: str, value: Any) -> Element:
  """A link that saves a JSON value, which the page itself holds.

  Args:
    name: of the file.
    value: to save.
  """
  text = json.dumps(value, ensure_ascii=False, indent=1, allow_nan=False)
  address = data_address(text.encode(), 'application/json')
  return element('a', f'numbers: {name}', href=address, download=name)


def data_address(content: bytes, kind: str) -> str:
  """An address that holds the content itself."""
  return f'data:{kind};base64,{base64.b64encode(content).decode()}'


def _name(text: str) -> Element:
  """The name of a row, which may be cut after its dots and the like."""
  parts = re.split(r'(?<=[._/])', text)
  cut = (child for part in parts[1:] for child in (element('wbr'), part))
  return element('th', parts[0], *cut, scope='row')


def _cell(text: str) -> Element:
  if text and set(text) <= _NUMERIC:
    return element('td', text, class_='number')
  return element('td', text)

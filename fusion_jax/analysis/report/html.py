"""Elements of an HTML page; their text is escaped when it is written."""

import base64
import json
import re
from collections.abc import Sequence
from typing import Any
from xml.etree.ElementTree import Element, tostring

# Characters of a cell with a number.
_NUMERIC = frozenset('0123456789+-.,% ')


def element(tag: str, *children: Element | str, **attributes: str) -> Element:
  """Make an element that contains texts and elements in order.

  Args:
    tag: Name of the element.
    children: Elements and texts; texts are escaped.
    attributes: Attributes; `class_` is class, `aria_label` is aria-label.
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
  """Return the whole file of an `html` element."""
  return f'<!DOCTYPE html>\n{tostring(root, "unicode", "html")}\n'


def section(name: str, title: str, *children: Element | str) -> Element:
  """Make a part of the page that can be linked to as #name."""
  return element('section', element('h2', title), *children, id=name)


def table(
  heads: Sequence[str], rows: Sequence[Sequence[str]], label: str
) -> Element:
  """Make a table that scrolls by itself if it is too wide for the page.

  Args:
    heads: Headings of the columns.
    rows: Cells as long as `heads`; the first cell names the row.
    label: Accessible name of the table.
  """
  head = element('tr', *(element('th', name, scope='col') for name in heads))
  body = (element('tr', _name(row[0]), *map(_cell, row[1:])) for row in rows)
  made = element('table', element('thead', head), element('tbody', *body))
  return scrolling(made, label)


def scrolling(child: Element, label: str) -> Element:
  """Make a box that scrolls sideways, also by the keyboard."""
  return element(
    'div', child, class_='scroll', tabindex='0', role='region', aria_label=label
  )


def details(summary: str, *children: Element | str) -> Element:
  """Make a block that is shown when its summary is opened."""
  return element('details', element('summary', summary), *children)


def download(name: str, value: Any) -> Element:
  """Make a link that saves a JSON value, which the page itself holds.

  Args:
    name: Name of the file.
    value: Value to save.
  """
  text = json.dumps(value, ensure_ascii=False, indent=1, allow_nan=False)
  address = data_address(text.encode(), 'application/json')
  return element('a', f'numbers: {name}', href=address, download=name)


def data_address(content: bytes, kind: str) -> str:
  """Return an address that holds the content itself."""
  return f'data:{kind};base64,{base64.b64encode(content).decode()}'


def _name(text: str) -> Element:
  """Make the head of a row, which may be broken after dots and the like."""
  parts = re.split(r'(?<=[._/])', text)
  cut = (child for part in parts[1:] for child in (element('wbr'), part))
  return element('th', parts[0], *cut, scope='row')


def _cell(text: str) -> Element:
  if text and set(text) <= _NUMERIC:
    return element('td', text, class_='number')
  return element('td', text)

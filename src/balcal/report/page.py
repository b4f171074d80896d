"""The page of a run: sections in one HTML file that needs nothing else, neither network nor other files.

A section is a record in the `SECTIONS` of any module in this folder. So one new file adds one:

    TEMPLATE = "{% call(view) each_view(content.views) %}<p>{{ unsure(view) }} samples</p>{% endcall %}"

    def unsure(view: View) -> int:
        return int((view.predictions.probs.amax(1) < 0.5).sum())

    def body(content: Content) -> Markup | None:
        return fill(TEMPLATE, content=content, unsure=unsure)

    SECTIONS = (Section("Confidence below 50 %", 25, body),)
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import BaseLoader, Environment, StrictUndefined, TemplateNotFound
from markupsafe import Markup

from balcal import report
from balcal.core import BalcalError
from balcal.report.content import Content, View
from balcal.report.svg import pct, shown, tag
from balcal.runtime.files import write_atomic


@dataclass(frozen=True)
class Section:
    """A part of the page. Low orders come first."""

    title: str
    """its heading; without one, the body stands by itself"""
    order: int
    body: Callable[[Content], Markup | None]
    """what stands below the heading; None where there is nothing to show, a BalcalError where it cannot be had"""


def sections() -> list[Section]:
    """Those of all modules in this folder, in order."""
    modules = sorted(each.name for each in pkgutil.iter_modules(report.__path__, f"{report.__name__}."))
    found = [each for name in modules for each in getattr(importlib.import_module(name), "SECTIONS", ())]
    return sorted(found, key=lambda section: section.order)


def run_page(content: Content) -> str:
    """The page as text. A section that cannot be made is left out, and a note at the end says why."""
    made, notes = list[tuple[Section, Markup]](), list(content.notes)
    for section in sections():
        try:
            body = section.body(content)
        except BalcalError as error:
            notes.append(f"“{section.title}” is left out: {error}.")
            continue
        if body is not None:
            made.append((section, body))
    title = f"{content.name}: {content.kicker}"
    return render("run.html", title=title, content=content, sections=made, notes=notes)


def write_page(page: str, path: Path) -> int:
    """Write it; returns how many bytes it has."""
    written = page.encode()
    write_atomic(path, written)
    return len(written)


def render(template: str, **values: Any) -> str:
    """A whole page from a file in `templates/`, which may load nothing else."""
    script = _part("script.js")
    seal = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{seal}'"
    page = _environment().get_template(template)
    return page.render(style=Markup(_part("style.css")), script=Markup(script), policy=Markup(policy), **values)


def fill(template: str, **values: Any) -> Markup:
    """Part of a page, from the text of a Jinja template or the name of a file in `templates/`; values are escaped.

    >>> fill("<p>{{ name }}: {{ share|pct }}</p>", name="a < b", share=0.5)
    Markup('<p>a &lt; b: 50.0\\xa0%</p>')
    """
    environment = _environment()
    made = environment.get_template(template) if template.endswith(".html") else environment.from_string(template)
    return Markup(made.render(**values))


def each_view(views: Sequence[View], caller: Callable[[View], Markup]) -> Markup:
    """What `caller` makes of each view; the page shows the one that is chosen at its top."""
    return Markup("\n").join(tag("div", caller(view), class_="view", data_view=view.key) for view in views)


def interval(bounds: tuple[float, float], digits: int = 1) -> Markup:
    """An interval of shares, in percent and in small letters."""
    low, high = (f"{end * 100:.{digits}f}" for end in bounds)
    return tag("small", f"[{low}, {high}]")


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


class _Templates(BaseLoader):
    """Those in the package, wherever it was unpacked."""

    def get_source(self, environment: Environment, template: str) -> tuple[str, str | None, Any]:
        try:
            return _part(template), None, lambda: True
        except OSError:
            raise TemplateNotFound(template) from None


def _part(name: str) -> str:
    return files("balcal.report").joinpath("templates", name).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    """Every value is escaped, unless it is Markup."""
    made = Environment(
        loader=_Templates(),
        autoescape=True,
        finalize=shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"pct": pct, "capital": _capital}
    made.globals |= {"each_view": each_view, "interval": interval}
    return made

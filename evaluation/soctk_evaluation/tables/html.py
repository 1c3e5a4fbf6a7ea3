"""HTML pages that need no other file and no network: templates on one base, all texts escaped."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

BASE = "tables/assets/base.html.jinja"
"""What all pages share: no access to anything else, type, print; tables that are sorted by a click on a heading."""


def page(template: str, **given: Any) -> str:
    """Return a page.

    Args:
        template: its path in this package.
        given: what the template shows.
    """
    from jinja2 import Environment, FunctionLoader

    def text_of(name: str) -> str:
        return files("soctk_evaluation").joinpath(name).read_text(encoding="utf-8")

    environment = Environment(loader=FunctionLoader(text_of), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template(template).render(base=BASE, **given)

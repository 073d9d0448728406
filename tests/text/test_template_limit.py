from __future__ import annotations

import contextlib
import sys
import time

import jinja2
import pytest

from server.text.template_limit import limit_template


class TooLong(Exception):
    pass


def render(template: str, limit_s: float) -> str:
    compiled = jinja2.Environment().from_string(template)
    with limit_template(limit_s, TooLong):
        return compiled.render()


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}"
        "{% endfor %}",
        "{% macro two(n) %}{% if n %}{{ two(n - 1) }}{{ two(n - 1) }}{% endif %}{% endmacro %}{{ two(60) }}",
        "{% set x = namespace(n=0) %}{% for a in range(99999999999) %}{% set x.n = x.n + 1 %}{% endfor %}",
        "{% for a in range(99999) recursive %}{{ loop([1]) if loop.depth < 20 }}{{ loop([1, 2]) }}{% endfor %}",
    ],
    ids=["loops in loops", "macros", "one long loop", "recursive loop"],
)
def test_a_template_without_end_is_ended(template: str) -> None:
    start_s = time.monotonic()
    with pytest.raises((TooLong, RecursionError)):
        render(template, 0.05)
    assert time.monotonic() - start_s < 10


def test_a_template_within_the_limit_is_rendered() -> None:
    assert render("{% for a in range(3) %}{{ a }}{% endfor %}", 5) == "012"


@pytest.mark.parametrize("limit_s", [5, 0.0])
def test_the_thread_is_as_before(limit_s: float) -> None:
    before = sys.gettrace()
    with contextlib.suppress(TooLong):
        render("{% for a in range(3) %}{{ a }}{% endfor %}", limit_s)
    assert sys.gettrace() is before


def test_other_code_is_not_ended() -> None:
    with limit_template(0.0, TooLong):
        assert sum(n for n in range(1000)) == 499500

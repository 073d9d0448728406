"""httpx without its command line: that would bring Rich, Click and Pygments into a server that has no screen.

They cost 80 ms of the start (x86-64, httpx 0.28.1, 2026-11-30). The library takes their absence for "not installed".
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import cast

cast("dict[str, ModuleType | None]", sys.modules).setdefault("httpx._main", None)

import httpx  # noqa: E402

__all__ = ["httpx"]

"""Copying out of a terminal program, and saying no more than is known about it."""

from __future__ import annotations

import os
import subprocess
import sys

from textual.app import App


def copy_text(app: App[object], text: str, what: str) -> str:
    """Copy by the surest way there is; the result says in a sentence what was done.

    On a Mac's own terminal pbcopy puts it on the clipboard. Elsewhere the terminal is asked by OSC 52, which many
    obey and some ignore without a word.
    """
    app.copy_to_clipboard(text)
    is_near = sys.platform == "darwin" and "SSH_CONNECTION" not in os.environ
    if is_near and _pbcopy(text):
        return f"{what} is on the clipboard."
    return f"{what} was sent to the terminal's clipboard (OSC 52); not every terminal takes it."


def _pbcopy(text: str) -> bool:
    try:
        subprocess.run(["pbcopy"], input=text.encode(), check=True, timeout=2, stderr=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        return False
    return True

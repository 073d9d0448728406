"""What is wrong with a checkpoint's tokenizer files, found when it loads and told in a sentence.

The libraries that read them tell some faults by an error from their insides, and others only when a client asks.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import jinja2

from server.errors import CheckpointInvalid
from server.models.regular_file import open_regular
from server.text.template_limit import limit_template

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

OBJECTS = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
"""Files that hold a JSON object, each where it is there."""

MARK = b"\xef\xbb\xbf"
"""What some editors write before UTF-8."""


class _Compiled(Exception):
    """The template's first line is about to run."""


def check_files(folder: Path) -> None:
    """Raise CheckpointInvalid for a file that cannot be read, or is no JSON object by its beginning."""
    for path in (folder / name for name in OBJECTS):
        try:
            with open_regular(path) as file:
                beginning = file.read(1024)
        except FileNotFoundError:
            continue
        except OSError as problem:
            raise CheckpointInvalid(f"{path} cannot be read: {problem.strerror}.") from None
        if beginning.removeprefix(MARK).lstrip()[:1] not in (b"{", b""):
            raise CheckpointInvalid(f"{path} holds no JSON object; fetch it again.")


def check_template(tokenizer: TokenizerWrapper, folder: Path) -> None:
    """Raise CheckpointInvalid for a chat template that does not compile. What it says of messages is not judged."""
    if not tokenizer.has_chat_template:
        return
    try:
        with limit_template(0.0, _Compiled):
            tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False)
    except (jinja2.TemplateSyntaxError, SyntaxError) as fault:  # the second one for blocks nested too deep for Python
        line = f" in line {fault.lineno}" if fault.lineno else ""
        reason = " ".join(str(fault.args[0] if fault.args else fault).split())[:300].rstrip(".")
        raise CheckpointInvalid(f"The chat template in {folder} does not compile{line}: {reason}.") from fault
    except Exception:  # it has compiled; what it does from there on is told to the request that it does it for
        return

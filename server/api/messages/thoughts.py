"""What a thinking block carries beside its text: a signature, which clients hand back and never look into.

Anthropic's proves who thought. Ours proves nothing; it is there because SDKs demand a string and some clients throw
away a thought with an empty one. Where a client wants no text, the thought itself travels in it, so that the next
turn still has it and the prompt begins as it did.
"""

from __future__ import annotations

import base64
import binascii

MARK = "homebase."
"""What our signatures begin with; those of other servers are told apart by it."""


def build_signature(hidden_thought: str = "") -> str:
    """A signature, with a thought in it that is not shown."""
    return MARK + base64.urlsafe_b64encode(hidden_thought.encode()).decode("ascii")


def read_signature(signature: str) -> str:
    """The thought in a signature; empty for one without, or of another server."""
    if not signature.startswith(MARK):
        return ""
    try:
        return base64.urlsafe_b64decode(signature.removeprefix(MARK)).decode()
    except (binascii.Error, ValueError):
        return ""

"""The clients whose settings are known, by the names that the command takes."""

from __future__ import annotations

from console.client_settings import aider, claude_code, codex, continue_dev, grok, opencode, pi, qwen
from console.client_settings.shape import Client

CLIENTS: dict[str, Client] = {
    "opengrok": grok.OPENGROK,
    "grok": grok.CLIENT,
    "claude-code": claude_code.CLIENT,
    "codex": codex.CLIENT,
    "opencode": opencode.CLIENT,
    "qwen": qwen.CLIENT,
    "pi": pi.CLIENT,
    "aider": aider.CLIENT,
    "continue": continue_dev.CLIENT,
}

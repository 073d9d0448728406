"""Claude Code: variables, in the shell or in settings.json. Pure."""

from __future__ import annotations

from console.client_settings.shape import NO_KEY, Client, Given, Settings


def build(given: Given) -> Settings:
    """The Messages dialect at the server's root, both of its models the one that is served."""
    variables = {
        "ANTHROPIC_BASE_URL": given.root_url,
        "ANTHROPIC_MODEL": given.model,
        "ANTHROPIC_SMALL_FAST_MODEL": given.model,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    if given.context_tokens is not None:
        variables["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] = str(given.context_tokens)
    key = {} if given.asks_key else {"ANTHROPIC_AUTH_TOKEN": NO_KEY}
    return Settings(
        values={"env": variables | key},
        shell=(
            *(f"export {name}={value}" for name, value in variables.items()),
            f"export ANTHROPIC_AUTH_TOKEN={given.shell_key}",
            'claude -p "Say what hello.py prints."',
        ),
        notes=(
            "The variables do the same in the shell, for one session, and in its file, for all.",
            *(("Its file holds no key: the last variable stays in the shell.",) if given.asks_key else ()),
        ),
    )


CLIENT = Client("Claude Code", build, "json", ".claude", "settings.json", "CLAUDE_CONFIG_DIR")

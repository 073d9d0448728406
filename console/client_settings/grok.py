"""Grok Build and OpenGrok: config.toml, with the limits for subagents that they hold themselves. Pure."""

from __future__ import annotations

from typing import Any

from console.client_settings.shape import KEY_VARIABLE, NO_KEY, Client, Given, Settings


def build(given: Given) -> Settings:
    """A model of its own and the limits of the policy; which model is the default stays as it is."""
    limits = given.limits.subagents
    model: dict[str, Any] = {
        "model": given.model,
        "base_url": given.base_url,
        "env_key": KEY_VARIABLE,
        "name": f"{given.model} (homebase-console)",
        "max_completion_tokens": given.output_tokens,
    }
    if given.context_tokens is not None:
        model["context_window"] = given.context_tokens
    return Settings(
        values={
            "model": {"homebase": model},
            "subagents": {
                "max_concurrent": max(1, given.children_each),
                "sampling_limit": max(1, given.children),
                "limit_behavior": "fail",
                "max_depth": max(1, limits.max_depth),
            },
            "ui": {
                "cancel_subagents_on_turn_cancel": "always_stop" if limits.cancel_on_turn_cancel else "always_continue"
            },
        },
        shell=(
            *(() if given.asks_key else (f"export {KEY_VARIABLE}={NO_KEY}",)),
            *(() if given.allows_children else ("export GROK_SUBAGENTS=0",)),
            "grok -m homebase",
        ),
        notes=(
            "Not run here: the names are those of Grok Build, which OpenGrok's settings bear too.",
            'limit_behavior = "fail" makes a spawn over the limit an answer that the agent reads, and not a wait.',
            *(
                ()
                if given.allows_children
                else (
                    "The policy allows no children. It takes any limit of 0 for 1, so its subagents are switched off.",
                )
            ),
        ),
    )


CLIENT = Client("Grok Build", build, "toml", ".grok", "config.toml", "GROK_HOME")
OPENGROK = Client("OpenGrok", build, "toml", ".grok", "config.toml", "GROK_HOME")

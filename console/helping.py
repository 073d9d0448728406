"""What the help page says: the keys that work on a screen, and what signs and thresholds mean."""

from __future__ import annotations

from textual.binding import Binding
from textual.screen import Screen

from console.actions import name_keys
from console.format import format_ratio, format_seconds
from console.widgets.context_bar import PARTS, part_sign
from console.widgets.gauges import HELD, MEMORY_HIGH_RATIO, PEAK, REFUSING_FOR_S, YIELDING
from console.widgets.phases import OUTCOMES, PHASES, STALLING_AFTER_S
from console.widgets.title import OPEN_SIGN, STALE_AFTER_S, STATE_WORDS

_PHASE_MEANINGS = {
    "waiting": "it stands in line for a place, or its first step has not run yet",
    "prefill": "its prompt is being read",
    "decode": "tokens are generated",
    "finished": "over; shown a few seconds more, dimmed",
}
_OUTCOME_MEANINGS = {
    "stop": "the model or a stop string ended it",
    "length": "it reached max_tokens",
    "cancelled": "its client hung up, or it was stopped here",
    "failed": "it broke; the log says how",
}
_PART_MEANINGS = {
    "cached": "cached: prompt tokens taken from the cache",
    "prefilled": "prefilled: prompt tokens computed for this request",
    "to read": "to read: prompt tokens still to compute",
    "generated": "generated: tokens of the answer",
    "free": "free: room up to the context limit",
}
_STATE_MEANINGS = {
    "starting": "the model is loading; requests are refused until it is ready",
    "serving": "requests are answered",
    "stalled": "a step takes longer than it should",
    "draining": "no new request is admitted, the running ones finish",
    "stopped": "nothing is served",
    "engine_dead": "the engine has ended by a fault; nothing can be generated",
}


def help_rows(screen: Screen[object]) -> list[tuple[str, str]]:
    """(keys, meaning) of everything that works on this screen now, its own keys first."""
    keys: dict[str, list[str]] = {}
    bindings: dict[str, Binding] = {}
    for key, active in screen.active_bindings.items():
        binding = active.binding
        if binding.system or not (binding.tooltip or (binding.show and binding.description)):
            continue
        keys.setdefault(binding.action, []).append(key)
        bindings.setdefault(binding.action, binding)
    own = [action for action, binding in bindings.items() if not (binding.id or "").startswith("screen.")]
    places = [action for action in bindings if action not in own]
    return [
        (name_keys(keys[action]), bindings[action].tooltip or bindings[action].description) for action in own + places
    ]


def legend_rows(plain: bool) -> list[tuple[str, str, str]]:
    """(sign, colour role, meaning) of every sign on the home screen, with the thresholds that change it.

    `plain` when bars are drawn for a terminal whose colours cannot be told apart.
    """
    rows = [(f"{s} {word}", role, _PHASE_MEANINGS[phase]) for phase, (s, word, role) in PHASES.items()]
    idle = format_seconds(STALLING_AFTER_S)
    rows.append(("▲ no token for", "state-warning", f"in decode, and nothing came for more than {idle}"))
    rows += [(f"{s} {word}", role, _OUTCOME_MEANINGS[name]) for name, (s, word, role) in OUTCOMES.items()]
    rows += [(part_sign(i, plain), colour, _PART_MEANINGS[name]) for i, (name, _, _, colour) in enumerate(PARTS)]
    recently = f"less than {format_seconds(REFUSING_FOR_S)} ago"
    rows += [
        ("● FULL", "state-ok", "slots: all taken, which is nothing bad by itself"),
        ("▲ REFUSING", "state-warning", f"slots: all taken, and a request was refused {recently}"),
        ("▲ REFUSED", "state-warning", f"slots: a request was refused {recently}, and a place is free again"),
        ("▲ HIGH", "state-warning", f"memory: {format_ratio(MEMORY_HIGH_RATIO)} of its budget is in use"),
        ("✕ FULL", "state-error", "memory: a request would be refused; what is left is promised to running streams"),
        (HELD, "state-ok", "in use: weights, contexts and a step's arrays; the percentage is of these"),
        (YIELDING, "gauge-cache", "prefixes and freed buffers of MLX: they give way by themselves"),
        (PEAK, "text-strong", "peak: the most that MLX has held since the start"),
        ("▲ STALE", "state-warning", f"busy, and these numbers are more than {format_seconds(STALE_AFTER_S)} old"),
    ]
    rows.append((OPEN_SIGN, "state-error", "other machines are answered without a key (server.allow_unauthenticated)"))
    rows += [(f"{s} {word}", role, _STATE_MEANINGS[name]) for name, (s, word, role) in STATE_WORDS.items()]
    return rows

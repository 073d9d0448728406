"""What drafting with the MTP head brings one stream, and how much of that its acceptance and its cost would allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

import msgspec

from server.engine.request import Sampling
from server.models.cache import ServedModel

from bare import DraftLoop, fill_state, time_decode
from engine_runs import GREEDY, EngineBench, Trace, build_policy
from eval_clock import install_clock
from report import Goal, Section, Spread, spread

ASKS = (
    "Write a Python class that keeps a queue of jobs and runs them one after another.",
    "Write a function that reads a CSV file and returns a list of dictionaries.",
    "Write a Python module that parses command line arguments and prints a table.",
    "Write a class for a binary search tree with insert, delete and iteration.",
    "Write a context manager that times a block and logs the result.",
    "Write a small HTTP client with retries on top of sockets.",
    "Write a decorator that caches the results of a function for some seconds.",
    "Write unit tests for a class that formats dates and times.",
    "Write a tokenizer for a small language of arithmetic expressions.",
    "Write a Python script that walks a folder and reports files that are alike.",
)
"""Short chats that nano answers with code, more or less."""
SETTINGS = ("off", 1, 2, 3, 4, "auto")
DEPTHS = (1, 2, 3, 4)
SAMPLED = Sampling(temperature=0.8, seed=0)
TITLES = {"greedy": "greedy", "sampled": "temperature 0.8 with a seed"}
HEADER = (
    *("mtp", "decode tok/s", "gain", "drafts per step", "accepted of drafted", "tokens per step"),
    *("a round in plain steps", "gain allowed", "of that", "text as off", "outside MLX"),
)
BARE_STEPS = 12
"""Bare steps of each kind for each prompt, in a row, as an engine would run them."""
WARM_STEPS = 3
"""Unmeasured ones before them."""


class Bare(msgspec.Struct, frozen=True):
    """What bare steps took after one prompt, in seconds."""

    plain_s: float
    draft_s: Mapping[int, float]
    """A round at each depth."""


class Stretch(msgspec.Struct, frozen=True):
    """One decode: what it gave and what it took."""

    trace: Trace
    outside_ratio: float
    """Share of the time between first and last token that was not in MLX's evaluation."""


class Measured(msgspec.Struct, frozen=True):
    """One setting over all prompts."""

    setting: str | int
    tps: Spread
    gain: Spread
    """Of decoding plainly, paired by prompt."""
    allowed: Spread
    share: Spread
    """Gain, of what is allowed."""
    acceptance: Spread | None
    depth: Spread
    tokens_per_step: Spread
    outside: Spread
    equal: int
    """Texts as without drafting."""
    count: int


def encode_ask(engine: EngineBench, number: int) -> tuple[int, ...]:
    """The prompt of one of the asks; numbers go round."""
    return engine.codec.encode_chat([{"role": "user", "content": ASKS[number % len(ASKS)]}]).token_ids


def measure_draft_gain(
    engine: EngineBench, model: ServedModel, *, sampled: bool, rounds: int, max_tokens: int
) -> Section:
    """All settings on the same prompts by turns; bare steps in between, in the same rounds."""
    stretches: dict[str | int, list[Stretch]] = {setting: [] for setting in SETTINGS}
    bares: list[Bare] = []
    _decode(engine, "auto", encode_ask(engine, -1), GREEDY, 128)  # warms, and lets "auto" learn what steps cost
    for number in range(rounds):
        prompt = encode_ask(engine, number)
        sampling = msgspec.structs.replace(SAMPLED, seed=number) if sampled else GREEDY
        for setting in _turn(SETTINGS, number):
            stretches[setting].append(_decode(engine, setting, prompt, sampling, max_tokens))
        per_step = {depth: stretches[depth][-1].trace.tokens_per_step for depth in DEPTHS}
        bares.append(_time_bare(model, [*prompt, *stretches["off"][-1].trace.token_ids], per_step))
    off = [stretch.trace for stretch in stretches["off"]]
    allowed = _find_allowed(stretches, bares)
    measured = [_measure(setting, list_, off, allowed[setting]) for setting, list_ in stretches.items()]
    return _build_section(measured, bares, "sampled" if sampled else "greedy")


def _turn(settings: Sequence[str | int], by: int) -> list[str | int]:
    """Each round begins with another setting, so that what drifts within a round hits all alike."""
    start = by % len(settings)
    return [*settings[start:], *settings[:start]]


def _decode(
    engine: EngineBench, setting: str | int, prompt: tuple[int, ...], sampling: Sampling, max_tokens: int
) -> Stretch:
    engine.policy = build_policy(mtp=setting)
    trace = engine.submit(prompt, max_tokens, sampling)
    engine.collect(lambda: bool(trace.emitted))
    before_s = install_clock().seconds
    engine.run(trace)
    outside_s = install_clock().seconds - before_s
    span_s = trace.emitted[-1].at_s - trace.emitted[0].at_s
    return Stretch(trace, outside_s / span_s)


def _time_bare(model: ServedModel, tokens: Sequence[int], per_step: Mapping[int, float]) -> Bare:
    """A plain step, and a round at each depth, at about the engine's contexts; medians."""
    start, after = tokens[: len(tokens) // 2], tokens[len(tokens) // 2 :]
    state = fill_state(model, start)
    plain = [time_decode(model, state, token).total_s for token in after[: BARE_STEPS + WARM_STEPS]]
    draft_s: dict[int, float] = {}
    for depth in DEPTHS:
        loop = DraftLoop(model, start, depth, per_step[depth])
        rounds = [loop.time_round().total_s for _ in range(BARE_STEPS + WARM_STEPS)]
        draft_s[depth] = median(rounds[WARM_STEPS:])
    return Bare(median(plain[WARM_STEPS:]), draft_s)


def _find_allowed(
    stretches: Mapping[str | int, Sequence[Stretch]], bares: Sequence[Bare]
) -> Mapping[str | int, list[float]]:
    """The gain that acceptance and the cost of drafting allow each setting, by prompt; auto is held to the best."""
    allowed: dict[str | int, list[float]] = {"off": [1.0] * len(bares)}
    for depth in DEPTHS:
        pairs = zip(stretches[depth], bares, strict=True)
        allowed[depth] = [each.trace.tokens_per_step * bare.plain_s / bare.draft_s[depth] for each, bare in pairs]
    return {**allowed, "auto": [max(of_prompt) for of_prompt in zip(*allowed.values(), strict=True)]}


def _measure(
    setting: str | int, stretches: Sequence[Stretch], off: Sequence[Trace], allowed: Sequence[float]
) -> Measured:
    traces = [stretch.trace for stretch in stretches]
    gains = [trace.decode_tps / plain.decode_tps for trace, plain in zip(traces, off, strict=True)]
    accepted = [trace.acceptance for trace in traces if trace.acceptance is not None]
    return Measured(
        setting=setting,
        tps=spread(trace.decode_tps for trace in traces),
        gain=spread(gains),
        allowed=spread(allowed),
        share=spread(gain / most for gain, most in zip(gains, allowed, strict=True)),
        acceptance=spread(accepted) if accepted else None,
        depth=spread(trace.mean_depth for trace in traces),
        tokens_per_step=spread(trace.tokens_per_step for trace in traces),
        outside=spread(stretch.outside_ratio for stretch in stretches),
        equal=sum(trace.token_ids == plain.token_ids for trace, plain in zip(traces, off, strict=True)),
        count=len(traces),
    )


def _build_section(measured: Sequence[Measured], bares: Sequence[Bare], how: str) -> Section:
    def cost(setting: str | int) -> Spread | None:
        return spread(bare.draft_s[setting] / bare.plain_s for bare in bares) if isinstance(setting, int) else None

    plain = spread(1000 * bare.plain_s for bare in bares)
    return Section(
        title=f"nano, one stream, {TITLES[how]}: what drafting brings",
        note=(
            "Every prompt with every setting of `[engine] mtp`, by turns; gain is paired by prompt. Allowed: tokens "
            "per step, over what a round with so many drafts costs in plain steps, both run bare (no engine) and "
            "greedy in the same rounds; auto is held to the best depth of each prompt. Outside MLX: share of decoding "
            "that is not in MLX's evaluation, so Python and the building of graphs."
        ),
        header=HEADER,
        rows=tuple(
            (
                *(each.setting, each.tps, each.gain, each.depth, each.acceptance, each.tokens_per_step),
                *(cost(each.setting), each.allowed, f"{each.share.median:.0%}"),
                *(f"{each.equal} of {each.count}", f"{each.outside.median:.0%}"),
            )
            for each in measured
        ),
        digits=2,
        findings=(f"Bare plain step: {plain.show(2)} ms.",),
        goals=_build_goals({each.setting: each for each in measured}, how),
    )


def _build_goals(measured: Mapping[str | int, Measured], how: str) -> tuple[Goal, ...]:
    off, auto = measured["off"], measured["auto"]
    drafting = [each for each in measured.values() if each is not off]
    equal, count = sum(each.equal for each in drafting), sum(each.count for each in drafting)
    text = Goal(f"1 stream, {how}: text with MTP on equals off", "all", f"{equal} of {count}", equal == count)
    if how == "sampled":
        return (text,)
    outside = (off.outside.median, auto.outside.median)
    return (
        Goal("1 stream, greedy: mtp auto / off", ">= 1.5x", auto.gain.show(2), auto.gain.median >= 1.5),
        Goal(
            "the same, of what acceptance and draft cost allow",
            ">= 85 %",
            f"{auto.share.median:.0%} of {auto.allowed.show(2)}",
            auto.share.median >= 0.85,
        ),
        Goal(
            "a step outside MLX's own, plain / drafting",
            "< 15 %",
            f"{outside[0]:.0%} / {outside[1]:.0%}",
            max(outside) < 0.15,
        ),
        text,
    )

"""The fields that say how tokens are drawn, which every dialect has by the same names; their ranges in one place."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from server.api.decoding import describe_field
from server.api.generation.logit_bias import read_logit_bias
from server.engine.request import Sampling
from server.errors import InvalidRequest

STOPS_MOST = 16
"""OpenAI takes 4; editors that complete code send more."""

STOP_CHARS = 512
"""A stop string is compared with the end of the text at every token."""

TOP_LOGPROBS_MOST = 20
"""As OpenAI's."""

SEED_LIMIT = 2**63
TOP_K_OFF = -1
"""Some clients write -1 for "keep all", which is 0 here."""


class SamplingFields(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are drawn, as it was sent; null means that it was left out."""

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: int | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=2)] | None = None
    repeat_penalty: Annotated[float, Meta(gt=0, le=2)] | None = None
    logit_bias: dict[str, Any] | None = None

    def build_sampling(self, vocab_size: int) -> Sampling:
        """How tokens are drawn; temperature 1 and no filter where nothing was said. Raises InvalidRequest.

        Of the two names for one penalty `repetition_penalty` wins.
        """
        top_k = 0 if self.top_k in (None, TOP_K_OFF) else self.top_k
        if top_k > vocab_size:
            raise InvalidRequest(
                f"`top_k` must be a whole number from 0 (keep all) to {vocab_size:,}, the size of the vocabulary; "
                f"{top_k if top_k < SEED_LIMIT else 'a huge number'} was given.",
                param="top_k",
            )
        return Sampling(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=top_k,
            min_p=0.0 if self.min_p is None else self.min_p,
            seed=self.seed,
            frequency_penalty=self.frequency_penalty or 0.0,
            presence_penalty=self.presence_penalty or 0.0,
            repetition_penalty=self.repetition_penalty or self.repeat_penalty or 1.0,
            logit_bias=read_logit_bias(self.logit_bias, vocab_size),
        )


SAMPLING_EXPECTED = {
    "temperature": "a number from 0 to 2",
    "top_p": "a number above 0 and at most 1",
    "top_k": "a whole number from 0 (keep all) to the size of the vocabulary",
    "min_p": "a number from 0 to 1",
    "frequency_penalty": "a number from -2 to 2",
    "presence_penalty": "a number from -2 to 2",
    "repetition_penalty": "a number above 0 and at most 2",
    "repeat_penalty": "a number above 0 and at most 2",
    "logit_bias": "an object from token ids, written as strings, to numbers from -100 to 100",
    "seed": "a whole number from 0 to 9223372036854775807",
}
"""What each field may be, in words."""


def stops_expected(name: str) -> dict[str, str]:
    """What a field of stop strings may be, in words."""
    return {
        name: f"a string or a list of at most {STOPS_MOST} strings, each of 1 to {STOP_CHARS} characters",
        f"{name}[]": f"a string of 1 to {STOP_CHARS} characters",
    }


def list_stops(stop: str | list[str] | None) -> tuple[str, ...]:
    """The stop strings of a field that takes one or a list."""
    return () if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)


def check_stops(stop: str | list[str] | None, name: str, document: dict[str, Any]) -> None:
    """Raise InvalidRequest for too many stop strings, an empty one or one that is too long."""
    stops = list_stops(stop)
    expected = stops_expected(name)
    if len(stops) > STOPS_MOST:
        raise describe_field(name, document, expected)
    for index, each in enumerate(stops):
        if not 1 <= len(each) <= STOP_CHARS:
            raise describe_field(name if isinstance(stop, str) else f"{name}[{index}]", document, expected)


def check_seed(seed: int | None, document: dict[str, Any]) -> None:
    """Raise InvalidRequest for a seed out of range."""
    if seed is not None and not 0 <= seed < SEED_LIMIT:
        raise describe_field("seed", document, SAMPLING_EXPECTED)

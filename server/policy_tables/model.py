"""[model]: which checkpoint is served."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from server.policy_tables.kinds import ONE_LINE, Effect, limit


class ModelPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which checkpoint is served."""

    path: Annotated[
        str,
        limit(
            "Folder of the checkpoint, or OWNER/NAME of one on Hugging Face, which is fetched once, or "
            '"nano": the small code-babbling model that ships inside, for trying the console. Empty serves no model '
            "here, only those of [[upstreams]].",
            Effect.NEXT_START,
            allowed="up to 4,096 characters",
            pattern=ONE_LINE,
            max_length=4096,
        ),
    ] = "nano"
    draft_path: Annotated[
        str,
        limit(
            "Folder, file or OWNER/NAME of a drafting head that comes apart from its model. Empty takes the one in the "
            "checkpoint or beside it.",
            Effect.NEXT_START,
            allowed="up to 4,096 characters",
            pattern=ONE_LINE,
            max_length=4096,
        ),
    ] = ""
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        limit(
            'Number format of the weights. "auto" keeps the checkpoint\'s own on a GPU and takes float32 on a CPU.',
            Effect.NEXT_START,
        ),
    ] = "auto"

from __future__ import annotations

import asyncio
import json
import random
import shutil
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import server.text.chat_template as template_module
import server.text.tokenizer as tokenizer_module
from server.errors import CheckpointInvalid, ContextLengthExceeded, InvalidRequest
from server.text.pool import TextPool
from server.text.tokenizer import EncodedPrompt, TextCodec, load_text_codec

NANO = Path(tokenizer_module.__file__).parents[1] / "models" / "nano"
USER = {"role": "user", "content": "hi"}


@pytest.fixture(scope="module")
def codec() -> TextCodec:
    return load_text_codec(NANO)


def decode(codec: TextCodec, ids: list[int]) -> str:
    detokenizer = codec.build_detokenizer()
    return "".join(map(detokenizer.add, ids)) + detokenizer.finish()


def test_a_chat_is_rendered_up_to_the_answer(codec: TextCodec) -> None:
    prompt = codec.encode_chat([{"role": "system", "content": "Be brief."}, USER])
    text = codec.decode(prompt.token_ids)
    assert text.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n")
    assert text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert prompt.token_ids[0] == 1
    assert all(0 <= token_id < codec.vocab_size for token_id in prompt.token_ids)


def test_stop_ids_come_from_every_file_that_names_one(codec: TextCodec) -> None:
    assert codec.stop_ids == {0, 2}
    assert codec.vocab_size == 3072


def test_special_tokens_are_hidden_but_for_the_markers_of_thoughts_and_calls(codec: TextCodec) -> None:
    markers = "<think>x</think><tool_call>y</tool_call>"
    ids = codec._encode(f"<|im_start|>a<|im_end|>b<tool_response><|vision_start|>{markers}c")
    assert decode(codec, ids) == f"ab{markers}c"
    assert codec.build_detokenizer().hides(2)
    assert not codec.build_detokenizer().hides(3)


@pytest.mark.parametrize(
    "text",
    ["def f(x):\n    return x\n", "  two spaces", "Příliš žluťoučký kůň", "日本語 emoji 👩‍👩‍👧", "\ttab\r\nend ", ""],
)
def test_what_is_encoded_is_decoded_again(codec: TextCodec, text: str) -> None:
    assert decode(codec, codec._encode(text)) == text


def test_random_tokens_decode_as_the_tokenizer_decodes_them(codec: TextCodec) -> None:
    dice = random.Random(3)
    for _ in range(50):
        ids = [dice.randrange(14, codec.vocab_size) for _ in range(20)]
        whole = codec._decode(ids)
        if "\ufffd" not in whole:
            assert decode(codec, ids) == whole


def test_what_the_template_refuses_is_the_requests_fault_and_says_why(codec: TextCodec) -> None:
    with pytest.raises(InvalidRequest, match="System message must be at the beginning"):
        codec.encode_chat([USER, {"role": "system", "content": "late"}])


def test_a_template_that_breaks_on_the_messages_is_the_requests_fault(codec: TextCodec) -> None:
    call = {"function": {"name": "f", "arguments": 5}}
    with pytest.raises(InvalidRequest, match="chat template does not take these messages"):
        codec.encode_chat([USER, {"role": "assistant", "content": "", "tool_calls": [call]}])


def test_deep_nesting_is_the_requests_fault_and_no_crash(codec: TextCodec) -> None:
    deep: Any = {}
    for _ in range(5000):
        deep = {"a": deep}
    call = {"function": {"name": "f", "arguments": deep}}
    with pytest.raises(InvalidRequest):
        codec.encode_chat([USER, {"role": "assistant", "content": "", "tool_calls": [call]}])


def test_a_text_far_over_the_limit_is_not_encoded_to_its_end(codec: TextCodec, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def encode(text: str, *, adds_special: bool = False) -> list[int]:
        sizes.append(len(text))
        return [5] * len(text)

    monkeypatch.setattr(codec, "_encode", encode)
    with pytest.raises(ContextLengthExceeded, match=r"65,536 tokens, but the prompt has at least 199,984 tokens"):
        codec.encode_chat([{"role": "user", "content": "x" * 5_000_000}], 65_536)
    assert sizes == [tokenizer_module.SLICE_CHARS]


def test_a_text_of_too_many_characters_is_not_encoded_at_all(codec: TextCodec, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = codec.encode_chat([USER], limit_chars=1000).token_ids
    assert whole == codec.encode_chat([USER]).token_ids
    monkeypatch.setattr(codec, "_encode", lambda *_, **__: pytest.fail("it was encoded"))
    with pytest.raises(InvalidRequest, match=r"At most 1,000 characters .* this prompt has 1,001\. Count it in parts"):
        codec.encode_text("x" * 1001, limit_chars=1000)
    with pytest.raises(InvalidRequest, match="At most 1,000 characters") as refusal:
        codec.encode_chat([{"role": "user", "content": "x" * 1000}], limit_chars=1000)
    assert refusal.value.param == "messages"


def test_other_threads_go_on_while_a_long_text_is_encoded(codec: TextCodec) -> None:
    ticks, stop = [0], threading.Event()

    def tick() -> None:
        while not stop.wait(0.001):
            ticks[0] += 1

    ticker = threading.Thread(target=tick)
    ticker.start()
    try:
        before = ticks[0]
        assert len(codec.encode_text("x" * 400_000)) > 1000
        assert ticks[0] - before > 20
    finally:
        stop.set()
        ticker.join()


def test_a_long_text_within_the_limit_is_encoded(codec: TextCodec) -> None:
    prompt = codec.encode_chat([{"role": "user", "content": "a" * 1_000_001}], 10_000_000)
    assert len(prompt.token_ids) > 1000


def copy_nano(folder: Path, **changes: Any) -> Path:
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json"):
        shutil.copy(NANO / name, folder / name)
    for name, change in changes.items():
        path = folder / f"{name}.json"
        document = json.loads(path.read_text())
        change(document)
        path.write_text(json.dumps(document))
    return folder


def test_messages_begin_where_the_template_says(codec: TextCodec) -> None:
    system = {"role": "system", "content": "Be brief."}
    ids = codec.encode_chat([system, USER, {"role": "assistant", "content": "yes"}, USER]).token_ids
    boundaries = codec.find_boundaries(ids)
    assert boundaries[0] == 0
    parts = [codec.decode(ids[first:]) for first in boundaries]
    roles = [part.removeprefix("<|im_start|>").partition("\n")[0] for part in parts]
    assert roles == ["system", "user", "assistant", "user", "assistant"]


@pytest.mark.parametrize("template", ["{{ messages[0].content }}", "{{ raise_exception('no') }}"])
def test_a_template_that_marks_no_messages_has_no_boundaries(tmp_path: Path, template: str) -> None:
    codec = load_text_codec(copy_nano(tmp_path, tokenizer_config=lambda d: d.update(chat_template=template)))
    assert codec.find_boundaries([1, 2, 1, 3]) == ()


def test_a_model_without_a_template_says_so(tmp_path: Path) -> None:
    codec = load_text_codec(copy_nano(tmp_path, tokenizer_config=lambda d: d.pop("chat_template")))
    with pytest.raises(InvalidRequest, match="no chat template"):
        codec.encode_chat([USER])


def test_a_template_that_makes_nothing_is_the_requests_fault(tmp_path: Path) -> None:
    codec = load_text_codec(copy_nano(tmp_path, tokenizer_config=lambda d: d.update(chat_template="{# nothing #}")))
    with pytest.raises(InvalidRequest, match="makes no prompt"):
        codec.encode_chat([USER])


def test_a_token_that_the_model_does_not_have_is_refused(tmp_path: Path) -> None:
    codec = load_text_codec(copy_nano(tmp_path, config=lambda d: d["text_config"].update(vocab_size=100)))
    with pytest.raises(InvalidRequest, match="the model does not"):
        codec.encode_chat([USER])


LOOP = (
    "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor %}{% endfor %}"
)


def test_a_template_that_loops_ends_as_the_requests_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_module, "RENDER_S", 0.05)
    codec = load_text_codec(copy_nano(tmp_path, tokenizer_config=lambda d: d.update(chat_template=LOOP)))
    start_s = time.monotonic()
    with pytest.raises(InvalidRequest, match=r"in 0\.05 s of work; it may loop"):
        codec.encode_chat([USER])
    assert time.monotonic() - start_s < 10


async def test_a_template_that_loops_leaves_its_thread_to_the_next(
    codec: TextCodec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_module, "RENDER_S", 0.05)
    looping = load_text_codec(copy_nano(tmp_path, tokenizer_config=lambda d: d.update(chat_template=LOOP)))
    pool = TextPool(workers=1)
    answers = await asyncio.gather(
        pool.run(lambda: looping.encode_chat([USER])),
        pool.run(lambda: looping.encode_chat([USER])),
        pool.run(lambda: codec.encode_chat([USER])),
        return_exceptions=True,
    )
    pool.close()
    assert [type(answer) for answer in answers] == [InvalidRequest, InvalidRequest, EncodedPrompt]


def test_tokens_are_spelled_in_bytes(codec: TextCodec) -> None:
    text = "Kůň 👋 x<|im_end|>"
    ids = codec._encode(text)
    assert b"".join(map(codec.spell, ids)).decode() == text
    assert any(codec.spell(token_id).decode("utf-8", "replace") == "\ufffd" for token_id in ids)
    assert (codec.spell(-1), codec.spell(10**6)) == (b"", b"")


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json"])
def test_a_broken_file_is_named(tmp_path: Path, name: str) -> None:
    (copy_nano(tmp_path) / name).write_text("{")
    with pytest.raises(CheckpointInvalid, match=str(tmp_path)):
        load_text_codec(tmp_path)


def test_loading_opens_no_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert load_text_codec(copy_nano(tmp_path)).encode_chat([USER]).token_ids
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(CheckpointInvalid):
        load_text_codec(tmp_path)


def test_a_plain_prompt_is_its_text_and_nothing_else(codec: TextCodec) -> None:
    ids = codec.encode_text("def f(x):")
    assert codec.decode(ids) == "def f(x):"
    assert codec.count("def f(x):") == len(ids)
    assert codec.encode_text("<|im_start|>user") == (1, *codec._encode("user"))


def test_what_the_tokenizer_puts_before_any_text_is_put_before_a_plain_prompt(tmp_path: Path) -> None:
    def begin_with_a_token(document: dict[str, Any]) -> None:
        single = [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
        token = {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}
        document["post_processor"].update(single=single, special_tokens={"<|endoftext|>": token})

    codec = load_text_codec(copy_nano(tmp_path, tokenizer=begin_with_a_token))
    assert codec.encode_text("ab") == (0, *codec._encode("ab"))
    assert codec.count("ab") == len(codec._encode("ab"))
    assert codec.encode_chat([USER]).token_ids[0] == 1


def test_a_plain_prompt_without_a_token_is_refused(codec: TextCodec) -> None:
    with pytest.raises(InvalidRequest, match="empty") as told:
        codec.encode_text("")
    assert told.value.param == "prompt"


def test_a_plain_prompt_far_over_the_limit_is_refused(codec: TextCodec) -> None:
    with pytest.raises(ContextLengthExceeded, match="at least"):
        codec.encode_text("word " * 250_000, 1000)


def test_a_plain_prompt_with_a_token_that_the_model_lacks_is_refused(tmp_path: Path) -> None:
    codec = load_text_codec(copy_nano(tmp_path, config=lambda d: d["text_config"].update(vocab_size=100)))
    with pytest.raises(InvalidRequest, match="the model does not") as told:
        codec.encode_text("some words")
    assert told.value.param == "prompt"


def test_decoding_shows_special_tokens_and_refuses_ids_that_are_none(codec: TextCodec) -> None:
    assert codec.decode([1, 2, 3]) == "<|im_start|><|im_end|><think>"
    assert codec.decode([]) == ""
    for wrong in (-1, codec.vocab_size, 10**30):
        with pytest.raises(InvalidRequest, match=f"id {wrong}; the model's ids are 0 to 3071") as told:
            codec.decode([1, wrong])
        assert told.value.param == "tokens"

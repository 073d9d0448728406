from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.admission import spawns
from server.admission.spawns import LEAST_CHARS, MOST_CHARS, SpawnBook, SpawnCall, find_spawn_prompts

PROMPT = "Find every place where the parser loses a token."


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def remembering(*entries: tuple[str, str], clock: Clock | None = None, most: int = 1000) -> SpawnBook:
    book = SpawnBook(clock or Clock(), most)
    for session, prompt in entries:
        book.remember(session, prompt)
    return book


@pytest.mark.parametrize("before", ["", "x", "<system-reminder>…</system-reminder>\n\n", "é" * 100])
@pytest.mark.parametrize("after", ["", "\n", " And then stop."])
def test_a_conversation_that_says_the_prompt_is_the_child_of_who_wrote_it(before: str, after: str) -> None:
    book = remembering(("other", PROMPT.replace("parser", "lexer")), ("parent", f"  {PROMPT}\n"))
    assert book.match([before + PROMPT + after]) == "parent"
    assert book.match(["hello", before + PROMPT + after]) == "parent"


def test_what_is_only_like_the_prompt_is_no_match() -> None:
    book = remembering(("parent", PROMPT))
    for text in (PROMPT[:-1], PROMPT[1:], PROMPT.lower(), PROMPT.replace(" ", "  "), ""):
        assert book.match([text]) is None


@given(
    st.text("ab", min_size=LEAST_CHARS, max_size=60), st.text("ab", max_size=80), st.text("ab", max_size=80), st.data()
)
def test_a_prompt_is_found_wherever_it_stands_and_nowhere_else(prompt: str, head: str, tail: str, data: Any) -> None:
    """Two letters make texts that repeat themselves, which is the hard case."""
    book = remembering(("parent", prompt))
    assert book.match([head + prompt + tail]) == "parent"
    other = data.draw(st.text("ab", max_size=200))
    assert (book.match([other]) == "parent") == (prompt in other)


def test_a_prompt_under_24_characters_matches_nothing() -> None:
    short, enough = "x" * (LEAST_CHARS - 1), "x" * LEAST_CHARS
    assert remembering(("parent", f" {short} ")).match([f" {short} "]) is None
    assert remembering(("parent", enough)).match([enough]) == "parent"


def test_the_newest_of_several_wins() -> None:
    book = remembering(("first", PROMPT), ("second", PROMPT), ("third", "Something else altogether, at length."))
    assert book.match([PROMPT]) == "second"


def test_a_conversation_never_matches_its_own_session_nor_anothers_key() -> None:
    book = remembering(("first", PROMPT), ("second", PROMPT))
    assert book.match([PROMPT], "second") == "first"
    assert book.match([PROMPT], "", "somebody") is None
    book.remember("theirs", PROMPT, "somebody")
    assert (book.match([PROMPT]), book.match([PROMPT], "", "somebody")) == ("second", "theirs")


def test_a_prompt_is_forgotten_after_an_hour() -> None:
    clock = Clock()
    book = remembering(("parent", PROMPT), clock=clock)
    clock.now_s += 3600
    assert book.match([PROMPT]) == "parent"
    clock.now_s += 1
    assert book.match([PROMPT]) is None
    assert len(book) == 0


def test_a_very_long_prompt_is_known_by_its_beginning() -> None:
    book = remembering(("parent", "word " * MOST_CHARS))
    assert book.match(["word " * (MOST_CHARS // 5 + 1)]) == "parent"


@given(st.lists(st.text("ab", min_size=LEAST_CHARS, max_size=30), max_size=40), st.integers(1, 5))
def test_the_book_holds_no_more_than_its_bound_and_knows_the_newest(prompts: list[str], most: int) -> None:
    book = remembering(*((f"s{i}", prompt) for i, prompt in enumerate(prompts)), most=most)
    assert len(book) == min(len(prompts), most)
    for number, prompt in list(enumerate(prompts))[-most:]:
        newest = max(i for i, other in enumerate(prompts) if other in prompt)
        assert book.match([prompt]) == f"s{newest}"
        assert newest >= number
    for prompt in prompts[:-most]:
        kept = [i for i, other in enumerate(prompts) if i >= len(prompts) - most and other in prompt]
        assert book.match([prompt]) == (f"s{max(kept)}" if kept else None)


def test_texts_made_to_be_slow_end_at_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = 0

    class Counted(str):
        __slots__ = ()

        def startswith(self, *args: Any) -> bool:
            nonlocal looked
            looked += 1
            return super().startswith(*args)

        def __getitem__(self, key: Any) -> Counted:
            return Counted(super().__getitem__(key))

    monkeypatch.setattr(spawns, "COMPARED_MOST", 500)
    book = remembering(*((f"s{i}", "a" * 100 + "b") for i in range(50)))
    assert book.match([Counted("a" * 100_000)]) is None
    assert 0 < looked <= 500


def call(name: str, arguments: Any) -> SpawnCall:
    return SpawnCall(name, arguments if isinstance(arguments, str) else json.dumps(arguments))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("spawn_subagent", {"prompt": PROMPT, "description": "Look through the whole parser", "background": True}),
        ("task", {"description": "Look through the whole parser", "prompt": PROMPT, "subagent_type": "general"}),
        ("Task", {"prompt": PROMPT}),
        ("Agent", {"description": "Look", "prompt": PROMPT, "subagent_type": "general-purpose"}),
        ("agent", {"prompt": PROMPT}),
        ("spawn_agent", {"message": PROMPT, "agent_type": "explorer"}),
        ("collaboration.spawn_agent", {"message": PROMPT}),
        ("mcp__team__delegate_task", {"goal": PROMPT, "context": "The parser is in server/text/xml_calls.py."}),
        ("delegateToAgent", {"tasks": [{"instructions": PROMPT}]}),
        ("delegate", {"tasks": [PROMPT]}),
        ("spawn_agent", {"items": [{"type": "text", "text": PROMPT}]}),
        ("task", {"work": PROMPT, "subagent_type": "an explorer of a long name", "file": "server/text/xml_calls.py"}),
        ("start_HELPER", {"prompt": PROMPT}),
        ("mcp__own__start_helper", {"prompt": PROMPT}),
    ],
)
def test_the_prompt_of_a_call_that_starts_an_agent_is_found(name: str, arguments: Any) -> None:
    assert find_spawn_prompts([call(name, arguments)], ("Start_Helper",)) == [PROMPT]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("bash", {"prompt": PROMPT}),
        ("todowrite", {"task": PROMPT}),
        ("TaskList", {"prompt": PROMPT}),
        ("task", {"prompt": "Short."}),
        ("task", {"cwd": f"/home/me/{PROMPT}"}),
        ("task", {"url": "http://127.0.0.1:11234/v1/chat/completions"}),
        ("task", '{"prompt": "' + PROMPT),
        ("task", "[" * 100_000),
        ("task", [1, None, {"prompt": 7}]),
    ],
)
def test_nothing_else_is_taken_for_a_prompt(name: str, arguments: Any) -> None:
    assert find_spawn_prompts([call(name, arguments)]) == []


def test_prompts_of_several_calls_are_all_found() -> None:
    calls = [call("task", {"prompt": PROMPT}), call("read", {}), call("task", {"prompt": PROMPT + " Twice."})]
    assert find_spawn_prompts(calls) == [PROMPT, PROMPT + " Twice."]

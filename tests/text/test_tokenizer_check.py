"""Tokenizer files that are refused when they load, each in a plain sentence."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from server.errors import CheckpointInvalid
from server.models.folder import EMBEDDED_FOLDER
from server.text.tokenizer import load_text_codec
from server.text.tokenizer_check import OBJECTS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of nano's tokenizer."""
    for name in OBJECTS:
        if (EMBEDDED_FOLDER / name).is_file():
            shutil.copy(EMBEDDED_FOLDER / name, tmp_path / name)
    return tmp_path


def set_template(folder: Path, template: str) -> None:
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_bytes()) | {"chat_template": template}))


def check_refused(folder: Path, *words: str) -> None:
    with pytest.raises(CheckpointInvalid) as caught:
        load_text_codec(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")
    for word in (str(folder), *words):
        assert word in message, message


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{% if", "line 1"),
        ("\n{{ messages[0].content ", "line 2"),
        ("{% for m in messages %}{{ m.content }}", "endfor"),
        ("{{ messages | nothing_like_it }}", "nothing_like_it"),
        ("{% for a in [1] %}" * 30 + "{% endfor %}" * 30, "nested"),
    ],
)
def test_a_template_that_does_not_compile_is_refused_at_the_load(folder: Path, template: str, words: str) -> None:
    set_template(folder, template)
    check_refused(folder, "does not compile", words)


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('only with a system prompt') }}",
        "{{ messages[7].content }}",
        "{{ nothing() }}",
        "{% generation %}x{% endgeneration %}",
        "",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    ],
)
def test_what_a_template_says_of_messages_is_not_judged(
    folder: Path, template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.text.chat_template.RENDER_S", 0.05)
    set_template(folder, template)
    load_text_codec(folder)


@pytest.mark.parametrize("name", OBJECTS)
@pytest.mark.parametrize("content", ["[]", " 7", '\n"text"', "null"])
def test_a_file_that_holds_no_object_is_named(folder: Path, name: str, content: str) -> None:
    (folder / name).write_text(content)
    check_refused(folder, name, "holds no JSON object")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", OBJECTS)
def test_a_pipe_is_not_waited_for(folder: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    check_refused(folder, name, "cannot be read: it is no regular file")

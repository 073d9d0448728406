from __future__ import annotations

from tokenizers import decoders

from server.text.vocabulary import build_byte_table, byte_alphabet


def test_the_byte_alphabet_has_a_printable_character_for_every_byte() -> None:
    alphabet = byte_alphabet()
    assert sorted(alphabet.values()) == list(range(256))
    assert all(character.isprintable() for character in alphabet)
    assert (alphabet["A"], alphabet["Ġ"], alphabet["Ċ"]) == (0x41, 0x20, 0x0A)


def test_byte_level_tokens_become_their_bytes_and_added_tokens_stay_text() -> None:
    found = build_byte_table(decoders.ByteLevel(), ["Ġword", "Ċ", "Ã", "<｜end▁here｜>", None])
    assert found is not None
    assert found.table == (b" word", b"\n", b"\xc3", "<｜end▁here｜>".encode(), b"")
    assert not found.trims_first_space


def test_sentencepiece_tokens_become_their_bytes() -> None:
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    plain = build_byte_table(decoders.Sequence(parts), ["▁word", "<0x0A>", "é"])
    trimming = build_byte_table(decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)]), ["▁word"])
    assert plain is not None
    assert plain.table == (b" word", b"\n", "é".encode())
    assert not plain.trims_first_space
    assert trimming is not None
    assert trimming.trims_first_space


def test_other_decoders_are_left_to_the_tokenizer() -> None:
    assert build_byte_table(decoders.WordPiece(), ["##a"]) is None
    assert build_byte_table(None, ["a"]) is None

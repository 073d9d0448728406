"""Make corpus, tokenizer and token files from the standard library of the Python that runs this.

    python prepare_data.py FOLDER

Writes tokenizer.json, {train,held_out,train_chat,held_out_chat}.npy and corpus.json into FOLDER.
"""

from __future__ import annotations

import ast
import json
import os
import random
import sys
import sysconfig
import textwrap
from pathlib import Path

import numpy as np
from geometry import VOCABULARY
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

SKIPPED_FOLDERS = {
    "site-packages", "test", "tests", "idle_test", "__pycache__", "lib2to3", "turtledemo", "pydoc_data", "ensurepip",
    "lib-dynload", "encodings",
}  # fmt: skip
SPECIAL_TOKENS = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>",
    "<tool_response>", "</tool_response>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>",
    "<|vision_pad|>",
]  # fmt: skip
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How the Qwen tokenizers cut text before merging."""
HELD_OUT_SHARE = 0.03
LONGEST_HELD_OUT = 60_000
"""Characters; a longer file would make up most of what is held out."""
FUNCTION_LINES = range(3, 46)
CHAT_SAMPLES = (4000, 200)
"""Chats to train on, and held out."""

Document = tuple[str, str]
"""Path below Lib/, and text."""


def read_library() -> list[Document]:
    """Every source file of the standard library, tests and tables left out."""
    root = Path(sysconfig.get_paths()["stdlib"])
    documents: list[Document] = []
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = sorted(n for n in subfolders if n not in SKIPPED_FOLDERS and not n.startswith("config-"))
        for name in sorted(files):
            if not name.endswith(".py") or name.startswith("_sysconfigdata"):
                continue
            content = (Path(folder) / name).read_bytes()
            try:
                text = content.decode("utf-8")
            except UnicodeDecodeError:
                text = content.decode("latin-1")
            if len(text) > 200:
                documents.append((str((Path(folder) / name).relative_to(root)), text))
    return documents


def hold_out(documents: list[Document]) -> list[Document]:
    """Take documents from the end until their share of all bytes is reached."""
    wanted = HELD_OUT_SHARE * sum(len(text.encode()) for _, text in documents)
    held_out: list[Document] = []
    while sum(len(text.encode()) for _, text in held_out) < wanted:
        path, text = documents.pop()
        if len(text) > LONGEST_HELD_OUT:
            documents.insert(0, (path, text))
        else:
            held_out.append((path, text))
    return held_out


def train_tokenizer(documents: list[Document]) -> Tokenizer:
    """Byte-level BPE in the manner of the family, with its special tokens first."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=False))
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(SPLIT), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((text for _, text in documents), trainer)
    return tokenizer


def write_chats(documents: list[Document]) -> list[str]:
    """For each function of middling length, a chat that asks for it by name and the source as the answer."""
    chats: list[str] = []
    for path, text in documents:
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            continue
        lines, module = text.splitlines(), path.removesuffix(".py").replace("/", ".").replace(".__init__", "")
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.end_lineno is None:
                continue
            if node.end_lineno - node.lineno not in FUNCTION_LINES:
                continue
            source = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))
            question = f"Write the function {node.name} from {module}."
            if told := ast.get_docstring(node):
                question += f" {told.strip().splitlines()[0]}"
            chats.append(
                f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
                f"```python\n{source}\n```<|im_end|>\n"
            )
    return chats


def main(folder: Path) -> None:
    """Write everything."""
    documents = read_library()
    shuffle = random.Random(0).shuffle
    shuffle(documents)
    held_out = hold_out(documents)
    tokenizer = train_tokenizer(documents)
    tokenizer.save(str(folder / "tokenizer.json"))
    end_of_text = tokenizer.token_to_id("<|endoftext|>")

    def encode(name: str, texts: list[str]) -> int:
        tokens = [token for item in tokenizer.encode_batch(texts) for token in (end_of_text, *item.ids)]
        np.save(folder / f"{name}.npy", np.array(tokens, dtype=np.uint16))
        return len(tokens)

    chats, held_out_chats = write_chats(documents), write_chats(held_out)
    shuffle(documents)
    shuffle(chats)
    facts = {
        "files": len(documents),
        "held_out_files": [path for path, _ in held_out],
        "train_tokens": encode("train", [text for _, text in documents]),
        "held_out_tokens": encode("held_out", [text for _, text in held_out]),
        "train_chat_tokens": encode("train_chat", chats[: CHAT_SAMPLES[0]]),
        "held_out_chat_tokens": encode("held_out_chat", held_out_chats[: CHAT_SAMPLES[1]]),
    }
    (folder / "corpus.json").write_text(json.dumps(facts, indent=1))
    print(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Rows per second of an n-gram table that is far larger than the memory that its process may have.

    uv run python bench/ngram_table.py [--table-gb 8] [--limit-gb 2] [--tokens 4000] [--json | --dry]

Writes a small checkpoint with rows as wide as the real model's (160 columns at 4 bits in groups of 32: 100 bytes a
row) and a sparse file for its table, then loads and runs it in a process whose address space is limited. The file's
holes are read as zeros without a disk: the figures are those of the look-up, and a bound for what a disk can give.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

GB = 1024**3
ROW_BYTES = 100
FIXTURE = Path(__file__).parent.parent / "tests" / "fixtures" / "flash_next" / "tiny"
SPARE_ROWS = 20_000
"""More than a round number of rows, since each head has a prime number of them."""
CHUNK = 512
"""Tokens of a prefill step here."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table-gb", type=float, default=8.0)
    parser.add_argument("--limit-gb", type=float, default=2.0)
    parser.add_argument("--tokens", type=int, default=4000, help="tokens that are looked up in each measurement")
    parser.add_argument("--json", action="store_true", help="the figures as one line of JSON")
    parser.add_argument("--dry", action="store_true", help="print only, write no results")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside is not None:
        print(json.dumps(measure(given.inside, given.tokens)))
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_checkpoint(folder, int(given.table_gb * GB) // ROW_BYTES)
        figures = run_limited(folder, given.tokens, int(given.limit_gb * GB))
    if given.json:
        print(json.dumps(figures))
    else:
        show(figures, given)


def run_limited(folder: Path, tokens: int, limit_bytes: int) -> dict[str, Any]:
    """The figures of a process that may address so many bytes."""
    command = [sys.executable, __file__, "--inside", str(folder), "--tokens", str(tokens)]
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes)),
    )
    if done.returncode:
        raise SystemExit(f"the limited process failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def show(figures: dict[str, Any], given: argparse.Namespace) -> None:
    """Print the figures, and write them down."""
    from server.models.blas import use_fast_blas

    use_fast_blas()  # before MLX, always
    from report import Section, begin_report, render_head, render_section, write_results

    rows = [
        (kind, figures[f"{kind}_rows_per_s"], figures[f"{kind}_cpu_us_per_token"]) for kind in ("decode", "prefill")
    ]
    section = Section(
        title=f"a table of {figures['table_bytes'] / GB:.1f} GB in a process limited to {given.limit_gb:g} GB",
        note=f"{figures['rows']:,} rows of {ROW_BYTES} bytes, 16 to a token.",
        header=("", "rows per second", "us of processor time per token"),
        rows=tuple(rows),
        digits=0,
        findings=(
            f"The whole small model ran {figures['forward_tokens']:,} tokens at "
            f"{figures['forward_tokens_per_s']:,.0f} a second.",
            f"Resident memory grew by {figures['growth_bytes'] / 2**20:.1f} MiB over all of it.",
        ),
    )
    report = begin_report("ngram_table.py")
    lines = [*render_head("ngram_table.py", report), *render_section(section)]
    print("\n".join(lines))
    if not given.dry:
        write_results("ngram-table", {**report, "section": section}, "\n".join(lines) + "\n")


def write_checkpoint(folder: Path, rows: int) -> None:
    """The small reference model with n-gram heads as wide as the real one's, and a sparse table of about `rows`."""
    from server.models.blas import use_fast_blas

    use_fast_blas()  # before MLX, always
    import mlx.core as mx

    raw = json.loads((FIXTURE / "config.json").read_text())
    text = raw["text_config"]
    text |= {"ple_embed_dim": 2560, "heads_per_ngram": 8, "ngram_vocab_size_base": rows // 16, "ngram_sidecar": True}
    (folder / "config.json").write_text(json.dumps(raw))
    tensors = mx.load(str(FIXTURE / "model.safetensors"))
    assert isinstance(tensors, dict)
    kept = {name: tensor for name, tensor in tensors.items() if ".ple_embedding." not in name}
    for kind, width in (("key", 256), ("value", 64)):
        kept[f"model.language_model.layers.1.ple.{kind}_proj.weight"] = mx.random.normal((width, 2560)) * 0.02
    mx.save_safetensors(str(folder / "model.safetensors"), kept)
    write_sparse_table(folder / "ngram-table.safetensors", rows + SPARE_ROWS)


def write_sparse_table(file: Path, rows: int) -> None:
    """A table in MTPLX's layout without a byte of content."""
    shapes = {"weight": ("U32", [rows, 20], 80), "scales": ("BF16", [rows, 5], 10), "biases": ("BF16", [rows, 5], 10)}
    header: dict[str, Any] = {}
    end = 0
    for name, (dtype, shape, width) in shapes.items():
        header[f"ngram.{name}"] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + rows * width]}
        end += rows * width
    text = json.dumps(header).encode()
    with file.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        stream.truncate(8 + len(text) + end)


def measure(folder: Path, tokens: int) -> dict[str, Any]:
    """Load the checkpoint, look up tokens one by one and in chunks, and run the model over some."""
    from server.models.loader import load_model  # before MLX, always

    import mlx.core as mx  # isort: skip
    import numpy as np

    from server.machine import read_resident_bytes
    from server.models.cache import Segment
    from server.models.flash_next.config import parse_config
    from server.models.flash_next.ngram_parts import build_tables
    from server.models.flash_next.sources import collect_tensors
    from server.models.folder import read_config

    model, raw = load_model(str(folder), "auto"), read_config(folder)
    config = parse_config(raw, "config.json")
    (table,) = build_tables(config, collect_tensors(folder, raw, config, None), {}, mx.float32, str(folder))
    dice = np.random.default_rng(1)
    figures: dict[str, Any] = {"table_bytes": table.nbytes, "rows": table.rows}
    mx.eval(table.gather(np.zeros((1, 16), np.int64)))
    before = read_resident_bytes()
    for kind, size in (("decode", 1), ("prefill", CHUNK)):
        wanted = [dice.integers(0, table.rows, (size, 16)) for _ in range(max(1, tokens // size))]
        begin, begin_cpu = time.perf_counter(), time.process_time()
        for rows in wanted:
            mx.eval(table.gather(rows))
        seconds, cpu_s = time.perf_counter() - begin, time.process_time() - begin_cpu
        looked_up = len(wanted) * size
        figures[f"{kind}_rows_per_s"] = looked_up * 16 / seconds
        figures[f"{kind}_cpu_us_per_token"] = cpu_s / looked_up * 1e6
    state, ran, begin = model.build_state(), 0, time.perf_counter()
    while ran < tokens:
        ids = tuple(dice.integers(0, 512, min(CHUNK, tokens - ran)).tolist())
        mx.eval(model.forward([Segment(state=state, token_ids=ids)]).logits[0], state.arrays())
        ran += len(ids)
    figures |= {"forward_tokens": ran, "forward_tokens_per_s": ran / (time.perf_counter() - begin)}
    figures["growth_bytes"] = read_resident_bytes() - before
    return figures


if __name__ == "__main__":
    main()

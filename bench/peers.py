"""mlx-vlm's server on the same checkpoint, from an environment of its own.

    python3 -m venv vlm && vlm/bin/pip install mlx-vlm==0.7.10 'mlx[cpu]==0.32.4'

Its CPU path multiplies experts in float32 only, as ours does, so it gets a float32 copy of the same weights.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import mlx.core as mx

from processes import Program

FLOATS = (mx.bfloat16, mx.float16)


def write_float32(source: Path, target: Path) -> Path:
    """A copy of a checkpoint with its weights in float32; integer buffers stay as they are."""
    target.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.suffix in {".json", ".jinja"} and path.name != "config.json":
            shutil.copy(path, target / path.name)
    config = json.loads((source / "config.json").read_text())
    config["dtype"] = "float32"
    (target / "config.json").write_text(json.dumps(config, indent=1))
    weights = mx.load(str(source / "model.safetensors"))
    assert isinstance(weights, dict)
    cast = {name: array.astype(mx.float32) if array.dtype in FLOATS else array for name, array in weights.items()}
    mx.save_safetensors(str(target / "model.safetensors"), cast, metadata={"format": "pt"})
    return target


def split_drafter(python: str, model: Path, target: Path) -> Path:
    """The checkpoint's MTP head in the folder form that mlx-vlm loads as a drafter."""
    command = [python, "-m", "mlx_vlm.split_mtp", "--model", str(model), "--output", str(target)]
    subprocess.run(command, check=True, capture_output=True)
    return target


def start_mlx_vlm(python: str, model: Path, drafter: Path | None, port: int) -> Program:
    """mlx-vlm's server, with its MTP drafter or without."""
    draft = ("--draft-model", str(drafter), "--draft-kind", "mtp") if drafter else ()
    command = [
        python,
        "-m",
        "mlx_vlm.server",
        "--model",
        str(model),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        *draft,
    ]
    return Program("mlx_vlm + MTP" if drafter else "mlx_vlm", str(model), command, port, "/health")

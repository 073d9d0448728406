"""A fast matrix product for MLX's CPU backend on Linux, whose wheel comes with the reference BLAS.

NumPy's wheel, which is here anyway, holds OpenBLAS under names and integer widths of its own. A shim of one function,
built once per machine by the C++ compiler that MLX itself needs to fuse operations, stands between them. It must be
loaded before MLX is, so the packages that import MLX call `use_fast_blas` first. Whatever is missing, MLX keeps its
own. Imports neither MLX nor NumPy.

Source: products of (T, 128) with (128, 648) run at 3.2 GMAC/s without it, and with it at 15, 46, 107 for T = 1, 4, 64
(one core of 2 x86, MLX 0.32.4, 2026-11-30).
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import platformdirs

log = logging.getLogger(__name__)

OFF_SWITCH = "HOMEBASE_PLAIN_BLAS"
"""Environment variable that, when set, leaves MLX its own BLAS."""
BUILD_S = 60
"""The shim takes 0.1 s to build; a compiler that hangs must not hang the start."""
OPENBLAS = "libscipy_openblas64_*.so"
PRODUCT, SET_THREADS = "scipy_cblas_sgemm64_", "scipy_openblas_set_num_threads64_"
"""The product with 64-bit sizes, and the count of threads it may use, as NumPy's build names them."""

SHIM = """
#include <cstdint>
using Product = void (*)(int, int, int, int64_t, int64_t, int64_t, float, const float*, int64_t, const float*,
                         int64_t, float, float*, int64_t);
extern "C" {
Product homebase_product = nullptr;
void cblas_sgemm(int order, int turn_a, int turn_b, int m, int n, int k, float alpha, const float* a, int lda,
                 const float* b, int ldb, float beta, float* c, int ldc) {
  homebase_product(order, turn_a, turn_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
}
"""


@cache
def use_fast_blas() -> bool:
    """Put NumPy's OpenBLAS in the place of MLX's BLAS for the life of the process; whether that is so now."""
    if sys.platform != "linux" or "mlx.core" in sys.modules or os.environ.get(OFF_SWITCH):
        return False
    try:
        openblas = _load_openblas()
        if openblas is None or (shim := _build_shim()) is None:
            return False
        return _connect(openblas, shim)
    except (OSError, AttributeError, ValueError, subprocess.SubprocessError) as problem:
        log.info("MLX keeps its own BLAS: %s", problem)
        return False


def _load_openblas() -> ctypes.CDLL | None:
    """The library in NumPy's wheel; None when NumPy was built otherwise."""
    numpy = importlib.util.find_spec("numpy")
    if numpy is None or numpy.origin is None:
        return None
    found = sorted(Path(numpy.origin).parents[1].joinpath("numpy.libs").glob(OPENBLAS))
    return ctypes.CDLL(str(found[0])) if found else None


def _build_shim() -> Path | None:
    """The shim's file, compiled if it is not there yet; None without a compiler."""
    key = hashlib.sha256(f"{SHIM}{platform.machine()}".encode()).hexdigest()[:16]
    file = platformdirs.user_cache_path("homebase-console") / f"blas-{key}.so"
    if file.is_file():
        return file
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        return None
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        source, built = Path(folder, "shim.cpp"), Path(folder, "shim.so")
        source.write_text(SHIM)
        command = [compiler, "-O2", "-shared", "-fPIC", str(source), "-o", str(built)]
        subprocess.run(command, check=True, capture_output=True, timeout=BUILD_S)
        built.replace(file)  # whole or not at all, also when two processes start at once
    return file


def _connect(openblas: ctypes.CDLL, file: Path) -> bool:
    """Load the shim where MLX will look for its BLAS, and point it at OpenBLAS."""
    product = ctypes.cast(getattr(openblas, PRODUCT), ctypes.c_void_p)
    # One thread: products here are small, and the other cores belong to the server and its clients. Two threads were
    # no faster for steps of 1 and 4 rows, and slower for a prefill (2 x86 cores shared, 2026-11-30).
    getattr(openblas, SET_THREADS)(1)
    shim = ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL)
    ctypes.c_void_p.in_dll(shim, "homebase_product").value = product.value
    return True

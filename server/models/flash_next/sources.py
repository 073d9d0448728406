"""Which files a checkpoint is made of, and the tensors in them by canonical name.

Most packs hold all in `model*.safetensors`. Some keep the n-gram table or the drafting head in a file or folder of its
own, beside the model or where `[model] draft_path` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from server.errors import CheckpointInvalid, ModelNotFound, ModelUnsupported
from server.models.flash_next.config import DRAFTER_TYPES, MODEL_TYPES, FlashNextConfig
from server.models.flash_next.layouts import rename, rename_drafter, rename_table, require_known
from server.models.folder import read_config
from server.models.tensor_files import TensorInfo, list_names, read_header, scan_checkpoint

TABLE_FILE = "ngram-table.safetensors"
"""The n-gram table of MTPLX packs, which set `ngram_sidecar` in their text_config."""
HEAD_FILE = "mtp.safetensors"
"""The drafting head of MTPLX packs, which may name another in `mlx_lm_extra_tensors.mtp_file`."""
HEAD_FOLDERS = ("mtp", "drafter", "draft")
"""Sub-folders where a drafting head that mlx-vlm split off is looked for."""

NVFP4_ENDINGS = ("_scale_2", "global_scale", "weight_packed")
"""Names that only NVFP4 as of ModelOpt and compressed-tensors has: its second scale, and its packed codes."""

Infos = dict[str, TensorInfo]


def collect_tensors(folder: Path, raw: Mapping[str, Any], config: FlashNextConfig, drafter: Path | None) -> Infos:
    """Every tensor that is needed, by canonical name. `drafter`, if any, comes before a head in the checkpoint.

    Raises:
        ModelNotFound: there are no weights, or no drafter where one should be.
        CheckpointInvalid: a file is damaged or missing, or two tensors are the same one.
        ModelUnsupported: names or a packing that nothing here can read.
    """
    where = str(folder)
    stored = scan_checkpoint(folder)
    infos = name_canonically(stored.values(), rename, where)
    require_known(infos, stored, where)
    _refuse_nvfp4(infos, where)
    if table := _find_table(folder, raw, config, infos):
        infos = {name: info for name, info in infos.items() if ".ngram_embedding." not in name} | table
    if head := _find_head(folder, raw, drafter):
        infos = {name: info for name, info in infos.items() if not name.startswith("mtp.")} | head
    return infos


def name_canonically(found: Iterable[TensorInfo], naming: Callable[[str], str | None], where: str) -> Infos:
    """The tensors that are needed, by canonical name."""
    infos: Infos = {}
    for info in found:
        name = naming(info.name)
        if name is None:
            continue
        if name in infos:
            raise CheckpointInvalid(f"{where} has the tensor {name} twice: as {infos[name].name} and {info.name}.")
        infos[name] = info
    return infos


def _refuse_nvfp4(infos: Infos, where: str) -> None:
    if found := sorted(info.name for name, info in infos.items() if name.endswith(NVFP4_ENDINGS)):
        raise ModelUnsupported(
            f"{where} is packed as NVFP4 with two levels of scales ({list_names(found)}), which is not built; "
            "a pack made by MLX (mode nvfp4, mxfp4 or affine) can be served."
        )


def _find_table(folder: Path, raw: Mapping[str, Any], config: FlashNextConfig, infos: Infos) -> Infos:
    """The tensors of a table in a file of its own; empty when there is none."""
    file = folder / TABLE_FILE
    inside = any(".ngram_embedding." in name for name in infos)
    text = raw.get("text_config", raw)
    asked = isinstance(text, dict) and text.get("ngram_sidecar") is True
    if asked and not inside and not file.is_file():
        raise CheckpointInvalid(f"{folder} lacks {TABLE_FILE}, where its config says the n-gram table is.")
    if not file.is_file() or (inside and not asked):
        return {}
    if len(config.ple_indices) != 1:
        raise ModelUnsupported(f"{file} holds one n-gram table, but the config has {len(config.ple_indices)} of them.")
    found = name_canonically(
        read_header(file).values(), lambda name: rename_table(name, config.ple_indices[0]), str(file)
    )
    return {name: info for name, info in found.items() if ".ngram_embedding." in name}


def _find_head(folder: Path, raw: Mapping[str, Any], drafter: Path | None) -> Infos:
    """The tensors of a drafting head in a file or folder of its own; empty when there is none."""
    place = drafter or _place_head(folder, raw)
    if place is None:
        return {}
    stored = read_header(place) if place.is_file() else scan_checkpoint(place)
    # A whole checkpoint can be named as the drafter, too: of it only the head is wanted.
    of_whole = [info for info in stored.values() if (rename(info.name) or "").startswith("mtp.")]
    found = name_canonically(of_whole or stored.values(), rename_drafter, str(place))
    _refuse_nvfp4(found, str(place))
    return found


def _place_head(folder: Path, raw: Mapping[str, Any]) -> Path | None:
    extra = raw.get("mlx_lm_extra_tensors")
    named = extra.get("mtp_file") if isinstance(extra, dict) else None
    if isinstance(named, str) and named:
        file = folder / Path(named).name  # never outside of the folder
        if not file.is_file():
            raise CheckpointInvalid(f"{folder} lacks {file.name}, where its config says the drafting head is.")
        return file
    if (folder / HEAD_FILE).is_file():
        return folder / HEAD_FILE
    for name in HEAD_FOLDERS:
        if (folder / name / "config.json").is_file() and _is_drafter(folder / name):
            return folder / name
    return None


def check_drafter(path: Path) -> Path:
    """The drafter that `[model] draft_path` names, checked to be one as far as can be told without its tensors.

    Raises:
        ModelNotFound: there is nothing there.
        CheckpointInvalid: it is of another architecture.
    """
    if path.is_file() and path.suffix == ".safetensors":
        return path
    if not (path / "config.json").is_file():
        raise ModelNotFound(
            f"There is no drafter at {path} ([model] draft_path): it must be a folder with a config.json, or a "
            ".safetensors file."
        )
    if not _is_drafter(path, DRAFTER_TYPES | MODEL_TYPES):
        raise CheckpointInvalid(
            f"{path} ([model] draft_path) is of the model_type {read_config(path)['model_type']!r} and drafts for "
            f"nothing that is served here; {', '.join(sorted(DRAFTER_TYPES))} does."
        )
    return path


def _is_drafter(folder: Path, types: frozenset[str] = DRAFTER_TYPES) -> bool:
    return read_config(folder)["model_type"] in types

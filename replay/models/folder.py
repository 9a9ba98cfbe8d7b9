"""A folder of weights: which of its files count, and what is missing."""

from __future__ import annotations

from pathlib import Path

from replay import strict_json
from replay.errors import ModelUnavailable

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_INDEX_BYTES = 64 * 2**20
MAX_FILES = 4096


def is_model_folder(folder: Path) -> bool:
    return not missing_from(folder)


def missing_from(folder: Path) -> list[str]:
    """What a folder of weights needs and this one lacks, in words."""
    if not folder.is_dir():
        return ["the folder itself"]
    missing = [] if (folder / "config.json").is_file() else ["config.json"]
    if next(folder.glob("*.safetensors"), None) is None:
        missing.append("*.safetensors")
    return missing


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that make up the model, sorted by name.

    In the order in which transformers looks: ``model.safetensors``, else those that the index names, else all. Some
    repositories hold a second copy of the weights beside the indexed shards.
    """
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    if (folder / INDEX).is_file():
        names = _indexed(folder / INDEX)
    else:
        names = sorted(path.name for path in folder.glob("*.safetensors"))
    if not names:
        raise ModelUnavailable(f"{folder} holds no *.safetensors", remedy="Pass a folder with safetensors weights.")
    return [folder / name for name in names]


def _indexed(index: Path) -> list[str]:
    remedy = "Fetch the weights again."
    try:
        with index.open("rb") as file:
            raw = file.read(MAX_INDEX_BYTES + 1)
        if len(raw) > MAX_INDEX_BYTES:
            raise ModelUnavailable(f"{index} is larger than {MAX_INDEX_BYTES} bytes", remedy=remedy)
        document = strict_json.loads(raw)
    except OSError as error:
        raise ModelUnavailable(f"{index}: {error.strerror}", remedy=remedy) from error
    except strict_json.InvalidJson as error:
        raise ModelUnavailable(f"{index} is not JSON", remedy=remedy) from error
    weight_map = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise ModelUnavailable(f"{index} has no weight_map", remedy=remedy)
    names = sorted(set(weight_map.values()))
    for name in names:
        # An index is as untrusted as any file: it must not lead out of its folder.
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise ModelUnavailable(f"{index} names {name!r}, which is not a file beside it", remedy=remedy)
    if len(names) > MAX_FILES:
        raise ModelUnavailable(f"{index} names {len(names)} files, more than {MAX_FILES}", remedy=remedy)
    return names

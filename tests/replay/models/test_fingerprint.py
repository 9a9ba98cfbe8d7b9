from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from replay.errors import ModelUnavailable
from replay.models.fingerprint import examine, known, tokenizer_fingerprint, weights_fingerprint

Tensors = dict[str, NDArray[np.generic]]
MakeFolder = Callable[..., Path]


def test_is_the_documented_hash(make_folder: MakeFolder) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    folder = make_folder("m", {"model.safetensors": {"w": array}})
    line = json.dumps(["w", "F32", [2, 3], hashlib.sha256(array.tobytes()).hexdigest()], separators=(",", ":"))
    assert weights_fingerprint(folder) == hashlib.sha256(line.encode() + b"\n").hexdigest()


def test_does_not_depend_on_the_file_layout(make_folder: MakeFolder, tensors: Tensors) -> None:
    one = make_folder("one", {"model.safetensors": tensors})
    names = sorted(tensors)
    shards = {f"model-{i}.safetensors": {name: tensors[name]} for i, name in enumerate(reversed(names))}
    many = make_folder("many", shards)
    assert weights_fingerprint(one) == weights_fingerprint(many)


@pytest.mark.parametrize("change", ["value", "dtype", "shape", "name", "missing"])
def test_depends_on_everything_else(make_folder: MakeFolder, tensors: Tensors, change: str) -> None:
    before = weights_fingerprint(make_folder("before", {"model.safetensors": tensors}))
    weight = tensors["model.embed.weight"]
    match change:
        case "value":
            weight[2, 3] += 1
        case "dtype":
            tensors["model.embed.weight"] = weight.view(np.int32)
        case "shape":
            tensors["model.embed.weight"] = weight.reshape(4, 3)
        case "name":
            tensors["renamed"] = tensors.pop("model.embed.weight")
        case "missing":
            del tensors["model.embed.weight"]
    assert weights_fingerprint(make_folder("after", {"model.safetensors": tensors})) != before


def test_facts_and_progress(make_folder: MakeFolder, tensors: Tensors) -> None:
    folder = make_folder("m", {"model.safetensors": tensors})
    seen: list[tuple[int, int]] = []
    found = examine(folder, on_bytes=lambda done, total: seen.append((done, total)))
    assert (found.dtype, found.size, found.num_tensors) == ("F32", 56, 3)
    assert seen[-1] == (56, 56)


def test_a_second_copy_beside_the_shards_is_not_counted(make_folder: MakeFolder, tensors: Tensors) -> None:
    alone = make_folder("alone", {"model.safetensors": tensors})
    both = make_folder("both", {"model-1.safetensors": tensors, "consolidated.safetensors": tensors})
    with pytest.raises(ModelUnavailable, match="stands in two files"):
        weights_fingerprint(both)
    index = {"weight_map": dict.fromkeys(tensors, "model-1.safetensors")}
    (both / "model.safetensors.index.json").write_text(json.dumps(index))
    assert weights_fingerprint(both) == weights_fingerprint(alone)


@pytest.mark.parametrize(
    "index",
    [b"[]", b"{", b'{"weight_map": {"a": 5}}', b'{"weight_map": {"a": "../x.safetensors"}}', b"[" * 100_000, b"{}",
     b'{"weight_map": {"a": "/etc/passwd"}}', b'{"weight_map": {"a": "absent.safetensors"}}', b'{"weight_map": {}}'],
)  # fmt: skip
def test_a_bad_index(make_folder: MakeFolder, tensors: Tensors, index: bytes) -> None:
    folder = make_folder("m", {"model-1.safetensors": tensors})
    (folder / "model.safetensors.index.json").write_bytes(index)
    with pytest.raises(ModelUnavailable):
        weights_fingerprint(folder)


def test_an_index_does_not_lead_out_of_its_folder(make_folder: MakeFolder, tensors: Tensors) -> None:
    make_folder("secret", {"other.safetensors": tensors})
    folder = make_folder("m", {"model-1.safetensors": tensors})
    index = {"weight_map": dict.fromkeys(tensors, "../secret/other.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelUnavailable, match="not a file beside it"):
        weights_fingerprint(folder)


def test_is_remembered_until_a_file_changes(make_folder: MakeFolder, tensors: Tensors) -> None:
    folder = make_folder("m", {"model.safetensors": tensors})
    assert known(folder) is None
    found = examine(folder)
    assert known(folder) == found
    seen: list[int] = []
    assert examine(folder, on_bytes=lambda done, total: seen.append(done)) == found
    assert seen == [], "a remembered folder is not read again"

    path = folder / "model.safetensors"
    stamp = path.stat().st_mtime_ns
    changed = bytearray(path.read_bytes())
    changed[-1] ^= 1
    path.write_bytes(changed)
    os.utime(path, ns=(stamp, stamp))  # size and mtime are those of before; only the ctime tells
    assert known(folder) is None
    assert examine(folder).fingerprint != found.fingerprint


def test_a_spoilt_note_is_no_harm(make_folder: MakeFolder, tensors: Tensors, caches: Path) -> None:
    folder = make_folder("m", {"model.safetensors": tensors})
    found = examine(folder)
    (note,) = (caches / "fingerprints").iterdir()
    for spoilt in (b"", b"[]", b"null", b"\xff", json.dumps({"stamp": []}).encode()):
        note.write_bytes(spoilt)
        assert examine(folder) == found


def test_a_cache_that_cannot_be_written_is_no_harm(make_folder: MakeFolder, tensors: Tensors, caches: Path) -> None:
    folder = make_folder("m", {"model.safetensors": tensors})
    caches.write_text("a file stands where the folder should be")
    assert examine(folder).num_tensors == 3


def test_tokenizer(make_folder: MakeFolder, tensors: Tensors) -> None:
    folder = make_folder("m", {"model.safetensors": tensors})
    expected = hashlib.sha256((folder / "tokenizer.json").read_bytes()).hexdigest()
    assert tokenizer_fingerprint(folder) == expected
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelUnavailable, match=r"tokenizer\.json"):
        tokenizer_fingerprint(folder)


def test_nothing_there(tmp_path: Path, make_folder: MakeFolder) -> None:
    with pytest.raises(ModelUnavailable, match="holds no"):
        weights_fingerprint(make_folder("m", {}))
    shutil.rmtree(tmp_path / "m")
    with pytest.raises(ModelUnavailable):
        weights_fingerprint(tmp_path / "m")

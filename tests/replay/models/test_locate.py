from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from replay.errors import ModelUnavailable
from replay.models import catalog
from replay.models.fingerprint import weights_fingerprint
from replay.models.locate import candidates, huggingface_hub_folder, locate

Tensors = dict[str, NDArray[np.generic]]
MakeFolder = Callable[..., Path]
ABSENT = "0123456789abcdef" * 4


@pytest.fixture
def folder(make_folder: MakeFolder, tensors: Tensors) -> Path:
    return make_folder("explicit", {"model.safetensors": tensors})


def put_in_cache(caches: Path, name: str, folder: Path) -> Path:
    return Path(shutil.copytree(folder, caches / "models" / name))


def put_in_hub(hub: Path, name: str, folder: Path, revision: str = "abc", *, main: str = "abc") -> Path:
    repository = hub / f"models--{name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True, exist_ok=True)
    (repository / "refs" / "main").write_text(main)
    return Path(shutil.copytree(folder, repository / "snapshots" / revision))


def test_explicit_folder(folder: Path) -> None:
    assert locate(explicit=folder) == folder
    assert locate(explicit=folder, fingerprint=weights_fingerprint(folder)) == folder
    assert locate("anything", explicit=folder) == folder


def test_explicit_with_another_fingerprint_names_both(folder: Path) -> None:
    with pytest.raises(ModelUnavailable, match=f"{weights_fingerprint(folder)[:12]}.*{ABSENT[:12]}") as caught:
        locate(explicit=folder, fingerprint=ABSENT)
    assert caught.value.remedy


@pytest.mark.parametrize("lacks", ["config.json", "model.safetensors"])
def test_explicit_folder_that_is_none(folder: Path, lacks: str) -> None:
    (folder / lacks).unlink()
    with pytest.raises(ModelUnavailable, match="missing"):
        locate(explicit=folder)


def test_explicit_that_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match="missing the folder itself"):
        locate(explicit=tmp_path / "absent")
    (tmp_path / "w.bin").write_bytes(b"pickle")
    with pytest.raises(ModelUnavailable, match="neither a folder nor"):
        locate(explicit=tmp_path / "w.bin")
    (tmp_path / "w.gguf").write_bytes(b"not one")
    with pytest.raises(ModelUnavailable, match="not a GGUF file"):
        locate(explicit=tmp_path / "w.gguf")


def test_cache_by_name_and_by_fingerprint(caches: Path, folder: Path) -> None:
    there = put_in_cache(caches, "small", folder)
    fingerprint = weights_fingerprint(there)
    assert locate("small") == there
    assert locate("SMALL") == there
    assert locate(fingerprint=fingerprint) == there
    assert locate(fingerprint=fingerprint[:12]) == there
    assert locate("served-under-another-name", fingerprint) == there


def test_hub_by_full_and_by_short_name(tmp_path: Path, folder: Path) -> None:
    there = put_in_hub(tmp_path / "hub", "some-org/Tiny-Llama", folder)
    assert locate("some-org/Tiny-Llama") == there
    assert locate("tiny-llama") == there
    assert locate(fingerprint=weights_fingerprint(folder)) == there
    with pytest.raises(ModelUnavailable):
        locate("other-org/Tiny-Llama")


def test_hub_prefers_the_snapshot_of_main(tmp_path: Path, folder: Path, make_folder: MakeFolder) -> None:
    other = make_folder("other", {"model.safetensors": {"w": np.ones(3, dtype=np.float32)}})
    old = put_in_hub(tmp_path / "hub", "org/m", other, "aaa", main="bbb")
    new = put_in_hub(tmp_path / "hub", "org/m", folder, "bbb", main="bbb")
    assert locate("org/m") == new
    assert locate("org/m", weights_fingerprint(other)) == old


def test_hub_snapshots_without_safetensors_are_passed_over(tmp_path: Path, folder: Path) -> None:
    there = put_in_hub(tmp_path / "hub", "org/m", folder)
    (there / "model.safetensors").rename(there / "pytorch_model.bin")
    assert list(candidates()) == []


def test_hub_folder_follows_its_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert huggingface_hub_folder() == tmp_path / "hub"
    monkeypatch.delenv("HF_HUB_CACHE")
    assert huggingface_hub_folder() == tmp_path / "home" / "hub"
    monkeypatch.delenv("HF_HOME")
    assert huggingface_hub_folder() == tmp_path / "xdg" / "huggingface" / "hub"


def test_order(tmp_path: Path, caches: Path, folder: Path) -> None:
    hub = put_in_hub(tmp_path / "hub", "org/m", folder)
    assert locate("m") == hub
    cached = put_in_cache(caches, "m", folder)
    assert locate("m") == cached
    beside = Path(shutil.copytree(folder, tmp_path / "incident" / "model"))
    assert locate("m", beside=[tmp_path / "nothing", tmp_path / "incident"]) == beside


def test_a_name_with_another_fingerprint_names_both(caches: Path, folder: Path) -> None:
    there = put_in_cache(caches, "m", folder)
    with pytest.raises(ModelUnavailable) as caught:
        locate("m", ABSENT)
    for part in (ABSENT[:12], weights_fingerprint(there)[:12], str(there)):
        assert part in str(caught.value)
    assert "--model PATH" in caught.value.remedy


def test_weights_beside_the_dump_with_another_fingerprint_are_named(tmp_path: Path, folder: Path) -> None:
    beside = Path(shutil.copytree(folder, tmp_path / "incident" / "model"))
    with pytest.raises(ModelUnavailable, match="found, but not those") as caught:
        locate(fingerprint=ABSENT, beside=[tmp_path / "incident"])
    assert str(beside) in str(caught.value)


def test_a_damaged_copy_does_not_hide_a_good_one(tmp_path: Path, caches: Path, folder: Path) -> None:
    damaged = put_in_cache(caches, "m", folder)
    good = put_in_hub(tmp_path / "hub", "org/other", folder)
    fingerprint = weights_fingerprint(good)
    with (damaged / "model.safetensors").open("r+b") as file:
        file.truncate(40)
    assert locate("m", fingerprint) == good
    shutil.rmtree(good)
    with pytest.raises(ModelUnavailable, match="is damaged"):
        locate("m", fingerprint)


def test_not_found_says_where_it_looked(tmp_path: Path, caches: Path) -> None:
    with pytest.raises(ModelUnavailable) as caught:
        locate("absent", beside=[tmp_path / "incident"])
    for place in (tmp_path / "incident" / "model", caches / "models", tmp_path / "hub"):
        assert str(place) in str(caught.value)
    assert "--model PATH" in caught.value.remedy


def test_not_found_but_in_the_catalogue_says_how_to_get_it() -> None:
    entry = catalog.CATALOG[0]
    for arguments in ((entry.name, None), (None, entry.weights_fingerprint), ("alias", entry.weights_fingerprint)):
        with pytest.raises(ModelUnavailable) as caught:
            locate(*arguments)
        assert caught.value.remedy == "Run: pplx-replay models pull smollm2-135m"


def test_inside_a_replay_nothing_is_converted(tmp_path: Path) -> None:
    source = tmp_path / "a model.gguf"
    source.write_bytes(b"GGUF")
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from replay.errors import ModelUnavailable\n"
        "from replay.isolate import guard\n"
        "from replay.models.locate import locate\n"
        "guard.install()\n"
        "try: locate(explicit=Path(sys.argv[1]))\n"
        "except ModelUnavailable as error: print(error, error.remedy)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, source],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""
    assert f"pplx-replay models path '{source}'" in done.stdout


@pytest.mark.parametrize("fingerprint", ["3f", "../../etc", "x" * 64, "A" * 64, "0" * 65, "\x1b[31m"])
def test_what_is_no_fingerprint_matches_nothing(caches: Path, folder: Path, fingerprint: str) -> None:
    put_in_cache(caches, "m", folder)
    with pytest.raises(ModelUnavailable, match="is not a fingerprint"):
        locate("m", fingerprint)


@pytest.mark.parametrize("name", ["../explicit", "/etc", "..", "a\0b", "m/../m", "*", "models--org--m"])
def test_a_name_from_a_dump_is_never_a_path(tmp_path: Path, caches: Path, folder: Path, name: str) -> None:
    put_in_cache(caches, "m", folder)
    put_in_hub(tmp_path / "hub", "org/m", folder)
    with pytest.raises(ModelUnavailable, match="no weights of"):
        locate(name)

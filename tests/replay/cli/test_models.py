from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from replay.models.fingerprint import weights_fingerprint

ROOT = Path(__file__).parents[3]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One model in our cache, one in the Hugging Face cache."""
    monkeypatch.setenv("PPLX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    ours = tmp_path / "cache" / "models" / "little"
    ours.mkdir(parents=True)
    (ours / "config.json").write_text("{}")
    (ours / "tokenizer.json").write_text("{}")
    save_file({"w": np.arange(1000, dtype=np.float32)}, ours / "model.safetensors")
    shutil.copytree(ours, tmp_path / "hub" / "models--org--Big" / "snapshots" / "abc")
    return tmp_path


def models(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "replay.cli", "replay", "models", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        env=os.environ,
    )


def test_list(home: Path) -> None:
    done = models("list")
    assert done.returncode == 0
    rows = {line.split()[0]: line for line in done.stdout.splitlines()}
    fingerprint = weights_fingerprint(home / "cache" / "models" / "little")[:12]
    assert rows["little"].split()[:3] == ["little", fingerprint, "F32"]
    assert str(home / "cache" / "models" / "little") in rows["little"]
    assert rows["org/Big"].split()[1] == "-"
    assert "pplx-replay models pull smollm2-135m" in rows["smollm2-135m"]
    assert "\x1b" not in done.stdout


def test_list_as_json(home: Path) -> None:
    rows = {row["name"]: row for row in json.loads(models("list", "--json", "--hash").stdout)["models"]}
    fingerprint = weights_fingerprint(home / "cache" / "models" / "little")
    assert rows["little"]["fingerprint"] == rows["org/Big"]["fingerprint"] == fingerprint
    assert (rows["little"]["dtype"], rows["little"]["size"]) == ("F32", 4000)
    assert rows["org/Big"]["kept_by"] == "Hugging Face cache"
    assert rows["smollm2-135m"]["path"] is None


def test_list_goes_on_past_damaged_weights(home: Path) -> None:
    with (home / "cache" / "models" / "little" / "model.safetensors").open("r+b") as file:
        file.truncate(100)
    done = models("list")
    assert done.returncode == 0
    assert "is damaged" in done.stderr
    assert "org/Big" in done.stdout


@pytest.mark.parametrize("by_fingerprint", [False, True])
def test_path_prints_only_the_path(home: Path, by_fingerprint: bool) -> None:
    folder = home / "cache" / "models" / "little"
    done = models("path", weights_fingerprint(folder)[:12].upper() if by_fingerprint else "little")
    assert (done.returncode, done.stdout) == (0, f"{folder}\n")


def test_path_of_a_file_that_cannot_be_converted(home: Path) -> None:
    (home / "bad.gguf").write_bytes(b"GGML")
    done = models("path", str(home / "bad.gguf"))
    assert (done.returncode, done.stdout) == (20, "")
    assert "not a GGUF file" in done.stderr


def test_path_of_what_is_not_here(home: Path) -> None:
    done = models("path", "absent", "--json")
    assert done.returncode == 20
    error = json.loads(done.stdout)["error"]
    assert (error["class"], error["exit_code"]) == ("ModelUnavailable", 20)
    assert done.stderr == ""


def test_pull_of_an_unknown_name(home: Path) -> None:
    done = models("pull", "smollm")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Did you mean smollm2-135m?" in done.stderr


def test_pull_from_a_wrong_file(home: Path) -> None:
    (home / "wrong.gguf").write_bytes(b"GGUF")
    done = models("pull", "smollm2-135m", "--from", str(home / "wrong.gguf"))
    assert (done.returncode, done.stdout) == (20, "")
    assert "expected sha256 b179c9523d0e" in done.stderr
    assert [path.name for path in (home / "cache" / "models").iterdir() if "smollm2" in path.name] == [
        ".smollm2-135m.lock"
    ]

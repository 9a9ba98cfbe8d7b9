from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from replay.errors import ModelUnavailable
from replay.models import cache

HALF_BUILT = """
import sys, signal
from replay.models import cache
def build(folder):
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"half")
    print("building", flush=True)
    sys.stdin.read()
cache.install("m", build)
"""


def build(folder: Path) -> None:
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")


def test_root_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PPLX_CACHE", str(tmp_path / "a"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    monkeypatch.setenv("HOME", str(tmp_path / "c"))
    assert cache.cache_root() == tmp_path / "a"
    monkeypatch.delenv("PPLX_CACHE")
    assert cache.cache_root() == tmp_path / "b" / "pplx-replay"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.cache_root() == tmp_path / "c" / ".cache" / "pplx-replay"


def test_install_and_find(caches: Path) -> None:
    assert cache.cached("m") is None
    assert cache.all_cached() == []
    folder = cache.install("m", build)
    assert cache.cached("m") == folder
    assert cache.all_cached() == [("m", folder)]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(caches.stat().st_mode) == 0o700


def test_a_model_that_is_there_is_not_built_again() -> None:
    folder = cache.install("m", build)
    assert cache.install("m", lambda _: pytest.fail("built twice")) == folder


def test_replace(caches: Path) -> None:
    cache.install("m", build)

    def rebuild(folder: Path) -> None:
        build(folder)
        (folder / "second").touch()

    assert (cache.install("m", rebuild, replace=True) / "second").exists()
    assert [path.name for path in (caches / "models").iterdir() if ".part-" in path.name] == []


@pytest.mark.parametrize("name", ["", ".", "..", "../m", "a/b", "/etc", "A", ".hidden", "m\0", "x" * 101, "m\n"])
def test_a_name_never_becomes_another_path(name: str) -> None:
    assert cache.cached(name) is None
    with pytest.raises(ValueError, match="not a name"):
        cache.install(name, build)


def test_a_model_outside_the_cache_is_not_reached(caches: Path) -> None:
    (caches / "m").mkdir(parents=True)
    (caches / "models").mkdir()
    build(caches / "m")
    assert cache.cached("../m") is None
    assert cache.cached(str(caches / "m")) is None


@pytest.mark.parametrize("error", [KeyboardInterrupt, ModelUnavailable])
def test_a_failed_build_leaves_nothing(caches: Path, error: type[BaseException]) -> None:
    def broken(folder: Path) -> None:
        build(folder)
        raise error("stop")

    with pytest.raises(error):
        cache.install("m", broken)
    assert cache.cached("m") is None
    assert [path.name for path in (caches / "models").iterdir()] == [".m.lock"]


def test_a_failed_replacement_keeps_the_old_model() -> None:
    folder = cache.install("m", build)

    def broken(_: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(ModelUnavailable, match="No space left"):
        cache.install("m", broken, replace=True)
    assert cache.cached("m") == folder


def test_two_at_once_build_once() -> None:
    building, waiting = threading.Event(), threading.Event()
    folders: list[Path] = []

    def slow(folder: Path) -> None:
        building.set()
        assert waiting.wait(60)
        build(folder)

    first = threading.Thread(target=lambda: folders.append(cache.install("m", slow)))
    first.start()
    assert building.wait(60)
    assert cache.cached("m") is None
    folders.append(cache.install("m", lambda _: pytest.fail("built twice"), on_wait=waiting.set))
    first.join(60)
    assert folders == [cache.cached("m")] * 2


@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_build_leaves_no_model_and_does_not_block_the_next(caches: Path, kill: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HALF_BUILT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "building\n"
        process.send_signal(kill)
        assert process.wait(60) != 0
    assert cache.cached("m") is None
    folder = cache.install("m", build)
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    assert sorted(path.name for path in (caches / "models").iterdir()) == [".m.lock", "m"]


def test_a_cache_that_cannot_be_written(caches: Path) -> None:
    caches.write_text("a file")
    with pytest.raises(ModelUnavailable, match="cannot write to the cache") as caught:
        cache.install("m", build)
    assert "PPLX_CACHE" in caught.value.remedy

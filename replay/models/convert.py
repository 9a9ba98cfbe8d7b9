"""GGUF to a folder of bfloat16 safetensors, once, so that every later load takes a second instead of ten.

The work is done by a child process: a GGUF file is foreign input, the child's memory goes back when it ends, and the
environment variables that keep transformers quiet and offline have to be set before it is imported.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from replay.errors import ModelUnavailable, UnsupportedModel
from replay.models.gguf_settings import lost_settings

OnStage = Callable[[str, int, int | None], None]

GGUF_MAGIC = b"GGUF"
NEEDED = ("torch", "transformers", "safetensors", "gguf", "accelerate")
MAX_LINE = 64 * 1024


def require_engine() -> None:
    """Raises `ModelUnavailable` where a conversion could not run. Called before a download, not after it."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ModelUnavailable(
            f"converting weights needs {', '.join(missing)}, not installed here",
            remedy="Install the engine: python -m pip install 'pplx-replay[engine]'",
        )


def convert_gguf(source: Path, target: Path, *, on_progress: OnStage = lambda stage, done, total: None) -> None:
    """Write config, weights, tokenizer, chat template and generation config of ``source`` into the folder ``target``.

    Weights are dequantised, so the result computes what the quantised model would in exact arithmetic. Raises
    `ModelUnavailable` where the file is not GGUF, the engine is not installed or the child is killed, and
    `UnsupportedModel` where transformers cannot convert it.
    """
    require_engine()
    try:
        with source.open("rb") as file:
            magic = file.read(len(GGUF_MAGIC))
    except OSError as error:
        raise ModelUnavailable(f"{source}: {error.strerror}", remedy="Check the path of the model.") from error
    if magic != GGUF_MAGIC:
        raise ModelUnavailable(f"{source} is not a GGUF file", remedy="Pass a .gguf file or a safetensors folder.")
    on_progress("loading torch", 0, None)
    command = [sys.executable, "-m", "replay.models.convert", str(source.absolute()), str(target.absolute())]
    try:
        _run(command, source, on_progress)
    except PermissionError as error:
        # The guard of a replay's worker: it starts no processes, and weights are converted before it begins.
        raise ModelUnavailable(
            f"{source} has to be converted, and that cannot be done from within a replay",
            remedy=f"Convert it once: pplx-replay models path {shlex.quote(str(source))}",
        ) from error


def _run(command: list[str], source: Path, on_progress: OnStage) -> None:
    with (
        tempfile.TemporaryFile() as noise,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=noise, env=_environment(), text=True
        ) as child,
    ):
        try:
            assert child.stdout is not None
            while line := child.stdout.readline(MAX_LINE):
                _take(json.loads(line), source, on_progress)
        except BaseException:
            child.kill()
            raise
        if child.wait() != 0:
            noise.seek(max(0, noise.tell() - 2000))
            raise ModelUnavailable(
                f"the conversion of {source} {_ending(child.returncode)}: "
                f"{noise.read().decode(errors='replace').strip() or 'it said nothing'}",
                remedy="Check that memory and disk space suffice, about three times the size of the converted model.",
            )


def _environment() -> dict[str, str]:
    return os.environ | {
        "HF_HUB_OFFLINE": "1",
        "TQDM_DISABLE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "PYTHONWARNINGS": "ignore",
        # The child must find this package also when it runs from a source tree.
        "PYTHONPATH": os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.getenv("PYTHONPATH")))),
    }


def _take(message: dict[str, str], source: Path, on_progress: OnStage) -> None:
    if "stage" in message:
        on_progress(message["stage"], 0, None)
    else:
        raise UnsupportedModel(
            f"{source} could not be converted: {message['error']}",
            remedy="Check the file, or convert it yourself and pass the folder of safetensors.",
        )


def _ending(code: int) -> str:
    return f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"


def _convert_here(source: Path, target: Path, on_stage: Callable[[str], None]) -> None:
    """The child's work: the only place where this package imports torch."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    folder, name = str(source.parent), source.name
    on_stage("reading the tokenizer")
    AutoTokenizer.from_pretrained(folder, gguf_file=name, local_files_only=True).save_pretrained(target)
    on_stage("dequantising the weights")
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder,
        gguf_file=name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
        local_files_only=True,
    )
    if lost := lost_settings(source, model.config):
        raise ValueError(f"transformers would lose {', '.join(lost)}, and the model would answer otherwise")
    on_stage("writing safetensors")
    model.save_pretrained(target)


def _child(arguments: list[str]) -> None:
    # Libraries may print; only this descriptor carries messages.
    messages = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def send(message: dict[str, str]) -> None:
        messages.write(json.dumps(message) + "\n")

    try:
        _convert_here(Path(arguments[0]), Path(arguments[1]), lambda stage: send({"stage": stage}))
    except MemoryError:
        raise
    except Exception as error:
        # Whatever a parser of a foreign file raises: the file is at fault, or it needs another transformers.
        send({"error": f"{type(error).__name__}: {error}"[:2000]})


if __name__ == "__main__":
    _child(sys.argv[1:])

"""Where a model computes: which device a wish means, what is set there, and what of it can change bits.

Nothing is set for the CPU. For CUDA the settings make a matmul of one shape take one kernel that adds up in one order:
no TF32, no reduction in bfloat16, a small cuBLAS workspace and where torch can no split-K, and one backend for
attention. They hold inside `Settings.applied` and are put back after it; only the workspace is set for good, in the
environment, since cuBLAS reads it once.

The CUDA half is written from torch's documentation and source and has not been run: there was no GPU to run it on.
"""

from __future__ import annotations

import ctypes
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from replay.errors import DeviceUnavailable, UsageError

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
SMALL_WORKSPACE = ":16:8"
"""Eight buffers of 16 KiB: too little for most split-K kernels, and one of the two values that NVIDIA documents as
reproducible."""

VARIABLES = (
    WORKSPACE,
    "CUBLASLT_WORKSPACE_SIZE",
    "CUBLAS_EMULATE_SINGLE_PRECISION",
    "CUBLAS_EMULATION_STRATEGY",
    "DISABLE_ADDMM_CUDA_LT",
    "NVIDIA_TF32_OVERRIDE",
    "PYTORCH_TUNABLEOP_ENABLED",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_BLAS_PREFER_CUBLASLT",
    "TORCH_CUBLASLT_UNIFIED_WORKSPACE",
)
"""Environment variables by which CUDA libraries choose other kernels."""

BACKENDS = {"efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH}
"""Attention backends that take a mask of -inf, fastest first. Flash attention takes none; cuDNN's chooses its kernel by
the shape of a call."""

_DRIVER = re.compile(r"\b\d{3,}\.\d+(?:\.\d+)?\b")


def resolve(wanted: str, *, recorded: str = "") -> str:
    """The device that `wanted` means: "cpu", "cuda" or "cuda:N" is itself, "auto" a choice.

    "auto" goes where the run was recorded (``recorded``, "cpu" or "cuda"), since nowhere else can bits agree, and to
    the CPU if that is not here. Without a record it is CUDA where that is usable. Raises `DeviceUnavailable`, and
    `UsageError` for another word.
    """
    if wanted == "auto":
        return "cuda" if recorded != "cpu" and unavailable() is None else "cpu"
    kind, colon, number = wanted.partition(":")
    if kind not in ("cpu", "cuda") or (colon and (kind == "cpu" or not number.isdecimal())):
        raise UsageError(f"device {wanted!r}: there is no such device", remedy="Use auto, cpu, cuda or cuda:N.")
    if kind == "cuda" and (problem := unavailable(int(number or 0))) is not None:
        raise problem
    return wanted


def unavailable(index: int = 0) -> DeviceUnavailable | None:
    """Why CUDA device number `index` cannot be used. None if it can."""
    if torch.version.cuda is None:
        return DeviceUnavailable(
            f"this torch ({torch.__version__}) is built without CUDA",
            remedy="Install a CUDA build of torch, or use --device cpu.",
        )
    with warnings.catch_warnings():  # torch warns of what the next lines say
        warnings.simplefilter("ignore")
        usable, count = torch.cuda.is_available(), torch.cuda.device_count()
    if not usable:
        return DeviceUnavailable(
            f"no CUDA device can be used here: {_refusal()}",
            remedy="Check that nvidia-smi shows one, or use --device cpu.",
        )
    if index >= count:
        return DeviceUnavailable(
            f"there is no CUDA device {index}: this process sees {count}",
            remedy=f"Use cuda:0 to cuda:{count - 1}, or look at CUDA_VISIBLE_DEVICES.",
        )
    return None


def _refusal() -> str:
    """What the driver says when it is asked to start."""
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return (str(error).splitlines() or [type(error).__name__])[0]
    return "torch finds none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is set while a model computes. ``blas`` is "cublaslt" or "cublas", ``attention`` a key of `BACKENDS`; an
    empty one leaves its part as it is, and both are empty on the CPU and for stock kernels."""

    blas: str = ""
    attention: str = ""

    @contextmanager
    def applied(self) -> Iterator[None]:
        """With these settings in force for the whole process; what was set before is put back."""
        with ExitStack() as stack:
            if self.blas:
                stack.enter_context(_matmul(self.blas))
            if self.attention:
                stack.enter_context(sdpa_kernel(BACKENDS[self.attention]))
            yield


@contextmanager
def _matmul(blas: str) -> Iterator[None]:
    """Full precision in matmuls of float32, sums in float32 for bfloat16, and the library `blas` for both."""
    matmul = torch.backends.cuda.matmul
    try:
        older = torch.get_float32_matmul_precision()
    except RuntimeError:  # torch's way to say that only its newer switches were used
        older = "highest"
    newer = [(one, one.fp32_precision) for one in (matmul, torch.backends.mkldnn.matmul) if _has_precision(one)]
    reduced = (matmul.allow_bf16_reduced_precision_reduction, _splits_k())
    library = torch.backends.cuda.preferred_blas_library()
    try:
        # Through the older switch, which sets the newer ones as well; the other way round torch refuses to compute.
        torch.set_float32_matmul_precision("highest")
        torch.backends.cuda.preferred_blas_library(blas)
        # torch lets split-K be forbidden in cuBLASLt only.
        _set_reduction(reduced=False, split_k=blas != "cublaslt")
        yield
    finally:
        torch.set_float32_matmul_precision(older)
        for one, value in newer:
            one.fp32_precision = value
        torch.backends.cuda.preferred_blas_library(library)
        _set_reduction(reduced=reduced[0], split_k=reduced[1])


def _has_precision(backend: Any) -> bool:
    """Torch before 2.9 does not have the newer switches."""
    return hasattr(backend, "fp32_precision")


def _splits_k() -> bool:
    """Whether matmuls of bfloat16 may split the summed dimension. Older versions of torch cannot be asked."""
    return bool(getattr(torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction_split_k", True))


def _set_reduction(*, reduced: bool, split_k: bool) -> None:
    matmul = torch.backends.cuda.matmul
    if hasattr(matmul, "allow_bf16_reduced_precision_reduction_split_k"):
        matmul.allow_bf16_reduced_precision_reduction = (reduced, split_k)
    else:
        matmul.allow_bf16_reduced_precision_reduction = reduced


def prepare(device: str) -> Settings:
    """Settings for exact kernels on `device`, with the first matmul library that works there.

    Sets the cuBLAS workspace in the environment unless it is set, or CUDA runs already and would not notice.
    """
    if not device.startswith("cuda"):
        return Settings()
    if not torch.cuda.is_initialized():
        os.environ.setdefault(WORKSPACE, SMALL_WORKSPACE)
    errors = []
    for blas in ("cublaslt", "cublas"):
        settings = Settings(blas=blas)
        try:
            with warnings.catch_warnings():  # torch calls the choice of a library experimental, once
                warnings.simplefilter("ignore")
                with settings.applied():
                    square = torch.ones((64, 64), dtype=torch.bfloat16, device=device)
                    torch.nn.functional.linear(square, square).sum().item()
            return settings
        except RuntimeError as error:
            errors.append(f"{blas}: {error}")
    raise DeviceUnavailable(
        f"no matmul library works on {device}: {'; '.join(errors)}", remedy="Use --kernels stock, or --device cpu."
    )


def settle(device: str) -> None:
    """Wait until everything that was launched on `device` is done, so that time and errors belong to who launched."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def device_facts(device: str, settings: Settings) -> dict[str, str]:
    """What of the device, its libraries and its settings can change bits; nothing for the CPU."""
    if not device.startswith("cuda"):
        return {}
    found = gpu_facts(torch.cuda.get_device_properties(device))
    found |= {
        "cuda": str(torch.version.cuda),
        "cublas": _cublas_version(),
        "cudnn": str(torch.backends.cudnn.version()),
        "driver": driver_version(_read(Path("/proc/driver/nvidia/version"))),
        "attention_backend": settings.attention or "torch's choice",
    }
    with settings.applied():
        matmul = torch.backends.cuda.matmul
        found |= {
            "blas": str(torch.backends.cuda.preferred_blas_library()).rpartition(".")[2].lower(),
            "matmul_precision": str(getattr(matmul, "fp32_precision", "") or torch.get_float32_matmul_precision()),
            "bf16_reduction": str(bool(matmul.allow_bf16_reduced_precision_reduction)),
            "split_k": str(_splits_k()),
        }
    return found | {name.lower(): os.environ[name] for name in VARIABLES if os.environ.get(name)}


def gpu_facts(properties: Any) -> dict[str, str]:
    """What torch's properties of a CUDA device say of its model. Kernels are chosen by the number of processors."""
    return {
        "gpu": str(properties.name),
        "gpu_processors": str(properties.multi_processor_count),
        "gpu_capability": f"{properties.major}.{properties.minor}",
    }


def driver_version(text: str) -> str:
    """The version in the first line of what NVIDIA's kernel module says of itself, or "unknown"."""
    match = _DRIVER.search(text.partition("\n")[0])
    return match.group() if match else "unknown"


def loaded_library(name: str) -> str | None:
    """Path of a shared library that this process has loaded, by the start of its file name."""
    for line in _read(Path("/proc/self/maps")).splitlines():
        path = line.partition("/")[2]
        if path.rpartition("/")[2].startswith(name):
            return "/" + path
    return None


def _cublas_version() -> str:
    """That of the library which is in use: it comes as a package of its own, so torch's version does not tell it."""
    path = loaded_library("libcublasLt.so")
    if path is None:
        return "unknown"
    get_version = ctypes.CDLL(path).cublasLtGetVersion
    get_version.restype = ctypes.c_size_t
    return str(get_version())


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""

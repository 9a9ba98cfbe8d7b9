"""Loads a model for a dump, and says how exactly it can speak about it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from dumps.fingerprint import fingerprint, platform_pairs
from dumps.schema.reader import Dump
from replay.engine.detokenize import Vocabulary, load_tokenizer
from replay.engine.device import resolve, unavailable
from replay.engine.loaded import Kernels, LoadedModel
from replay.engine.weights import load_model
from replay.report import finding
from replay.targets.compare import tolerance
from replay.targets.drive import Emit
from replay.targets.model_findings import model_findings


@dataclass(slots=True)
class LoadedFor:
    """A model that is ready for a dump, and how exactly it can speak about it."""

    model: LoadedModel
    vocabulary: Vocabulary
    strict: bool
    findings: list[dict[str, Any]] = field(default_factory=list)
    load_s: float = 0.0


Loaded = tuple[LoadedModel, Vocabulary]


def load_weights(folder: Path, *, dtype: str, kernels: Kernels, device: str, threads: int) -> Loaded:
    """Model and tokenizer of a folder, to run on that many threads (0: torch's own choice)."""
    if threads:  # part of the platform fingerprint
        torch.set_num_threads(min(threads, len(os.sched_getaffinity(0))))
    model = load_model(folder, dtype=dtype, kernels=kernels, device=device)
    return model, Vocabulary(load_tokenizer(folder))


def load_for(
    dump: Dump,
    folder: Path,
    *,
    dtype: str,
    mode: str,
    kernels: Kernels,
    device: str,
    emit: Emit,
    load: Callable[..., Loaded] = load_weights,
    clock: Callable[[], float] = time.perf_counter,
) -> LoadedFor:
    """Load the weights and decide between strict and forced, see `InferenceOptions`.

    ``load`` takes the arguments of `load_weights`. Raises `DeviceUnavailable`, `ModelUnavailable` and
    `UnsupportedModel`.
    """
    theirs = {pair.key: pair.value for pair in dump.state.manifest.platform}
    recorded_on = theirs.get("device", "")
    here = resolve(device, recorded=recorded_on)
    emit({"event": "progress", "stage": "load", "done": 0, "total": None})
    began = clock()
    model, vocabulary = load(
        folder,
        dtype=dtype,
        kernels=kernels,
        device=here,
        threads=dump.state.engine.num_threads,
    )
    manifest = dump.state.manifest
    ours = platform_pairs(model.numerics)
    same = bool(manifest.platform_fingerprint) and fingerprint(ours) == manifest.platform_fingerprint
    strict = not model.untested and (mode == "strict" or (mode == "auto" and same))
    loaded = LoadedFor(model, vocabulary, strict, model_findings(dump, model))
    if here == "cpu" and recorded_on == "cuda" and device == "auto" and (problem := unavailable()) is not None:
        loaded.findings.append(
            finding("device-unavailable", f"recorded on cuda, replayed on cpu: {problem}", remedy=problem.remedy)
        )
    if not same:
        names = sorted(k for k in theirs.keys() | ours.keys() if theirs.get(k) != ours.get(k))
        shown = "; ".join(f"{k}: recorded {theirs.get(k, 'unknown')}, here {ours.get(k, 'unknown')}" for k in names[:4])
        unexplained = "the recorded fingerprint is not that of the recorded facts" if theirs else "no platform recorded"
        consequence = (
            "strict mode was asked for, so any difference in bits counts"
            if strict
            else f"tokens are forced; one may lie {tolerance(model.dtype):g} below the top logit"
        )
        loaded.findings.append(
            finding(
                "platform-differs",
                f"bits can differ here ({shown or unexplained}): {consequence}",
                keys=names,
            )
        )
    loaded.load_s = clock() - began
    return loaded

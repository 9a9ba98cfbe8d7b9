"""What an int8 cache did to the keys and values that a replay wrote, for its report."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from replay.engine.kv_store import KVStore
from replay.report import finding


def kv_distortion(kv: KVStore) -> list[dict[str, Any]]:
    """One finding for a cache that measured, with numbers by layer and the worst of them in words; else none."""
    if kv.distortion is None or not kv.distortion.vectors:
        return []
    layers = kv.distortion.layers()
    worst, noisiest = max(layers, key=lambda one: one.largest), max(layers, key=lambda one: one.rms)
    text = (
        f"int8 KV: of {kv.distortion.vectors} key and value vectors written in this replay, a value is off by at most "
        f"{worst.largest:.3%} of the largest in its vector (layer {worst.layer}, {worst.tensor}), and the error is at "
        f"most {noisiest.rms:.3%} of the signal (RMS, layer {noisiest.layer}, {noisiest.tensor})"
    )
    if kv.distortion.non_finite:
        text += f"; {kv.distortion.non_finite} of the vectors were not finite and do not count"
    return [
        finding(
            "kv-distortion",
            text,
            vectors=kv.distortion.vectors,
            non_finite=kv.distortion.non_finite,
            layers=[asdict(layer) for layer in layers],
        )
    ]

"""Settings of a GGUF file that transformers does not carry over into a config.

A model that lost one of them still loads and still answers, only not as the one in the file: so it is better refused.
Read by the conversion's child process.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

ROTARY_TENSORS = ("rope_freqs", "rope_factors")
"""Beginnings of the names of tensors that scale rotary frequencies one by one."""


def lost_settings(source: Path, config: Any) -> list[str]:
    """What `source` says of the model and `config`, transformers' own for it, does not. Empty when all is there.

    What neither says is not seen: for Gemma 3, llama.cpp derives the attention's scale from the size of the model, so
    only a scale that is the usual one for its heads is let through.
    """
    from gguf import GGUFReader

    reader = GGUFReader(source)
    name = reader.fields["general.architecture"].contents()

    def said(key: str) -> Any:
        field = reader.fields.get(f"{name}.{key}")
        return None if field is None else field.contents()

    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    ropes = _ropes(config)
    lost = []
    scaled = said("rope.scaling.type") not in (None, "none") or said("rope.scaling.factor") not in (None, 0.0, 1.0)
    own_tensors = any(tensor.name.startswith(ROTARY_TENSORS) for tensor in reader.tensors)
    if (scaled or own_tensors) and all(rope.get("rope_type", "default") == "default" for rope in ropes):
        lost.append("its scaling of rotary positions")
    window = said("attention.sliding_window")
    if window and getattr(config, "sliding_window", None) != window:
        lost.append(f"its sliding window of {window} positions")
    turned = said("rope.dimension_count")
    if turned and any(int(head_dim * rope.get("partial_rotary_factor", 1.0)) != turned for rope in ropes):
        lost.append(f"that {turned} dimensions of a head of {head_dim} are rotary")
    if said("attention.key_length") not in (None, head_dim):
        lost.append(f"its head size of {said('attention.key_length')}")
    if getattr(config, "query_pre_attn_scalar", head_dim) != head_dim:
        lost.append("the scale of its attention")
    return lost


def _ropes(config: Any) -> list[dict[str, Any]]:
    """The rotary settings of all types of layers; none where positions are learned."""
    rope = getattr(config, "rope_parameters", None) or {}
    return [part for part in rope.values() if isinstance(part, dict)] or ([rope] if rope else [])

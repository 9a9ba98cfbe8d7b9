"""Which architectures are exact, as data, and what a config.json must say for that to hold.

An architecture is on the list when the tests compare it with transformers' own, and its bits over batches, chunks,
threads and block placement. Any other is refused, or runs on stock kernels, where nothing is promised about bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from replay.errors import UnsupportedModel

SILU = ("silu", "swish")
STATIC_ROPE = ("default",)
"""Rotary types whose frequencies do not follow the batch. "dynamic" and "longrope" take them from the longest position
of a batch, so a row's bits would depend on its mates."""

ACTIVATION_KEYS = ("hidden_act", "hidden_activation", "activation_function")
"""What config.json may call the activation of a feed-forward layer."""

Allowed = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One entry of the tested list.

    ``settings`` names, for each setting that can change what is computed, the values that are tested; a setting that
    config.json leaves out has the first of them. ``ropes`` are the rotary types, none where positions are learned: then
    the model has a table of them, and no row beyond its end. ``wide_router`` keeps routing weights in float32.
    ``attention`` and ``experts`` say how those parts are made exact, for people who read the list.
    """

    settings: Mapping[str, Allowed]
    ropes: Allowed = STATIC_ROPE
    learned_positions: bool = False
    wide_router: bool = False
    attention: str = "full"
    experts: str = ""

    def activation_of(self, config: Mapping[str, Any]) -> str:
        """The name of the feed-forward layers' activation."""
        name = next(key for key in ACTIVATION_KEYS if key in self.settings)
        return str(config.get(name, self.settings[name][0]))


_ROUTED = "router and experts as row-invariant linear layers; a token's shares added in order of its router's ranking"

TESTED: dict[str, Architecture] = {
    "LlamaForCausalLM": Architecture(settings={"hidden_act": SILU}, ropes=("default", "linear", "llama3")),
    "Qwen2ForCausalLM": Architecture(settings={"hidden_act": SILU}, attention="full or sliding, by layer"),
    "Qwen3ForCausalLM": Architecture(settings={"hidden_act": SILU}, attention="full or sliding, by layer"),
    # With layer types the model code masks by layer but tells the attention one window for all.
    "MistralForCausalLM": Architecture(settings={"hidden_act": SILU, "layer_types": (None,)}, attention="sliding"),
    "Gemma3ForCausalLM": Architecture(
        settings={
            "hidden_activation": ("gelu_pytorch_tanh",),
            "final_logit_softcapping": (None,),
            "attn_logit_softcapping": (None,),
            "use_bidirectional_attention": (False, None),
        },
        ropes=("default", "linear"),
        attention="full or sliding, by layer",
    ),
    "GPT2LMHeadModel": Architecture(
        settings={
            "activation_function": ("gelu_new",),
            "add_cross_attention": (False,),
            "reorder_and_upcast_attn": (False,),
            "scale_attn_by_inverse_layer_idx": (False,),
            "scale_attn_weights": (True,),
        },
        ropes=(),
        learned_positions=True,
    ),
    "Phi3ForCausalLM": Architecture(settings={"hidden_act": SILU}, attention="full or sliding"),
    "Qwen3MoeForCausalLM": Architecture(settings={"hidden_act": SILU}, attention="full or sliding", experts=_ROUTED),
    "MixtralForCausalLM": Architecture(
        settings={"hidden_act": SILU}, wide_router=True, attention="full or sliding", experts=_ROUTED
    ),
}
"""Architectures whose exactness is tested (tests/replay/engine/test_architectures.py), by their name in config.json."""

LAYER_TYPES = ("full_attention", "sliding_attention")


@dataclass(frozen=True, slots=True)
class Support:
    """What is known of a model before its weights are read. ``untested`` says why no bits are promised, or nothing."""

    architecture: str
    untested: str = ""
    tested: Architecture | None = field(default=None, compare=False)


def check_supported(config: Mapping[str, Any], *, stock: bool = False) -> Support:
    """What config.json names.

    Raises `UnsupportedModel` for what cannot run at all, and unless `stock` kernels were asked for, for what is not on
    the tested list.
    """
    names = config.get("architectures")
    architecture = str(names[0]) if isinstance(names, list) and names else "(none)"
    _refuse_impossible(config, architecture)
    found = TESTED.get(architecture)
    if found is None:
        untested, remedy = f"architecture {architecture} is not on the tested list", f"Tested: {', '.join(TESTED)}."
    else:
        untested, remedy = _untested_setting(config, architecture, found)
    if not untested:
        return Support(architecture, tested=found)
    if not stock or architecture == "(none)":
        raise UnsupportedModel(untested, remedy=f"{remedy} --kernels stock replays others, without exact bits.")
    return Support(architecture, untested=untested, tested=found)


def _refuse_impossible(config: Mapping[str, Any], architecture: str) -> None:
    """Raise for what no kernel of ours computes."""
    if config.get("quantization_config"):
        raise UnsupportedModel("the weights are quantised", remedy="Convert them to bfloat16 or float32 safetensors.")
    if config.get("kv_lora_rank"):
        raise UnsupportedModel(
            f"{architecture} has latent attention (kv_lora_rank): its cache holds no keys and values by head",
            remedy="Replay the schedule without the model: --target schedule.",
        )
    if config.get("is_encoder_decoder"):
        raise UnsupportedModel(
            f"{architecture} is an encoder and a decoder", remedy="Only decoder models can be replayed."
        )


def _untested_setting(config: Mapping[str, Any], name: str, tested: Architecture) -> tuple[str, str]:
    """What is outside the tested settings, and which they are; two empty strings when nothing is."""
    for setting, allowed in tested.settings.items():
        value = config.get(setting, allowed[0])
        if value not in allowed:
            return f"{name} with {setting} {value!r} is not tested", f"Tested: {_shown(allowed)}."
    for kind in _listed(config.get("layer_types")):
        if kind not in LAYER_TYPES:
            return f"{name} with layer type {kind!r} is not tested", f"Tested: {_shown(LAYER_TYPES)}."
    for kind in _rope_types(config) if tested.ropes else ():
        if kind not in tested.ropes:
            return f"{name} with rope_type {kind!r} is not tested", f"Tested: {_shown(tested.ropes)}."
    return "", ""


def _rope_types(config: Mapping[str, Any]) -> list[Any]:
    """The rotary types of all layers. transformers has written them flat, and by layer type."""
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    if not isinstance(rope, dict):
        return []
    by_layer = [part for part in rope.values() if isinstance(part, dict)]
    return [part.get("rope_type", part.get("type", "default")) for part in by_layer or [rope]]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _shown(allowed: Allowed) -> str:
    return ", ".join(str(value) for value in allowed)


def windows_of(config: Any) -> tuple[int | None, ...]:
    """The distinct attention windows of a model's layers, from transformers' config object."""
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    found = [window if kind == "sliding_attention" else None for kind in kinds] if kinds else [window]
    return tuple(dict.fromkeys(found))

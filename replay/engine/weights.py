"""Loads a model from a local folder of config.json and safetensors, and makes its kernels exact.

Nothing is fetched, nothing in the folder is run, and no pickled weights are read.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from replay import strict_json
from replay.engine.attention import EXACT, STOCK, TileSizes
from replay.engine.kernels.exact import KERNELS, ExactLinear, ExactSiLU, LinearForm, exact_attention
from replay.engine.kernels.stock import stock_attention
from replay.engine.kv_store import DTYPES, KVStore
from replay.engine.probe import choose_attention, choose_tile
from replay.errors import ModelUnavailable, UnsupportedModel

ISA_LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR")
"""Environment variables that hold libraries back to older instructions, whose results have other bits."""

Kernels = Literal["exact", "stock"]

TESTED: dict[str, dict[str, tuple[str, ...]]] = {
    "LlamaForCausalLM": {
        "hidden_act": ("silu", "swish"),
        # The dynamic types compute frequencies from the longest position in the batch.
        "rope_type": ("default", "linear", "llama3"),
    },
}
"""Architectures whose exactness is tested, with the settings for which that holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model ready to run, with what its probe found. ``head`` maps hidden states to logits, in whole row tiles.

    ``numerics`` holds everything here that can change bits, as strings: it goes into the platform fingerprint.
    """

    model: Any
    head: Any
    architecture: str
    vocab_size: int
    max_position_embeddings: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    eos_token_ids: tuple[int, ...]
    dtype: str
    device: str
    kernels: Kernels
    sizes: TileSizes
    threads: int
    numerics: dict[str, str]

    def kv_store(self, *, num_blocks: int, block_size: int) -> KVStore:
        """An empty cache of the model's shape."""
        return KVStore(
            num_blocks=num_blocks,
            block_size=block_size,
            num_layers=self.num_layers,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            dtype=self.dtype,
            device=self.device,
        )


def load_model(folder: Path, *, dtype: str, kernels: Kernels = "exact", device: str = "cpu") -> LoadedModel:
    """Load the weights in `folder` in `dtype` ("float32" or "bfloat16") and probe them on the current thread count.

    Raises `ModelUnavailable` when the folder holds no usable weights, `UnsupportedModel` when they are not on the
    tested list.
    """
    if dtype not in DTYPES:
        raise UnsupportedModel(f"dtype {dtype!r} is not supported", remedy=f"Use one of: {', '.join(DTYPES)}.")
    if device != "cpu":
        raise UnsupportedModel(f"device {device!r} is not tested yet", remedy="Use --device cpu.")
    config = _read_json(folder / "config.json")
    architecture = check_supported(config)
    check_weight_files(folder)
    model = _load(folder, architecture, DTYPES[dtype], EXACT if kernels == "exact" else STOCK)
    facts = model.config
    num_heads = facts.num_attention_heads
    num_kv_heads = facts.num_key_value_heads
    head_dim = getattr(facts, "head_dim", None) or facts.hidden_size // num_heads
    sizes = TileSizes(rows=1)
    forms: dict[str, LinearForm] = {}
    if kernels == "exact":
        with torch.inference_mode():
            tile, forms = _make_exact(model)
            sizes = choose_attention(
                num_heads=num_heads,
                num_kv_heads=num_kv_heads,
                head_dim=head_dim,
                dtype=DTYPES[dtype],
                max_keys=facts.max_position_embeddings,
                rows=tile,
            )
    return LoadedModel(
        model=model.model,
        head=model.lm_head,
        architecture=architecture,
        vocab_size=facts.vocab_size,
        max_position_embeddings=facts.max_position_embeddings,
        num_layers=facts.num_hidden_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        hidden_size=facts.hidden_size,
        eos_token_ids=eos_token_ids(folder, config),
        dtype=dtype,
        device=device,
        kernels=kernels,
        sizes=sizes,
        threads=torch.get_num_threads(),
        numerics=_numerics(sizes, forms, dtype=dtype, kernels=kernels, device=device),
    )


def check_supported(config: dict[str, Any]) -> str:
    """The architecture that config.json names. Raises `UnsupportedModel` when exactness is not tested for it."""
    tested = ", ".join(TESTED)
    names = config.get("architectures") or ["(none)"]
    architecture = str(names[0])
    if architecture not in TESTED:
        raise UnsupportedModel(f"architecture {architecture} is not on the tested list", remedy=f"Tested: {tested}.")
    if config.get("quantization_config"):
        raise UnsupportedModel("the weights are quantised", remedy="Convert them to bfloat16 or float32 safetensors.")
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    rope = rope if isinstance(rope, dict) else {}
    settings = {
        "hidden_act": config.get("hidden_act", "silu"),
        "rope_type": rope.get("rope_type", rope.get("type", "default")),
    }
    for name, value in settings.items():
        if value not in TESTED[architecture][name]:
            allowed = ", ".join(TESTED[architecture][name])
            raise UnsupportedModel(f"{architecture} with {name} {value!r} is not tested", remedy=f"Tested: {allowed}.")
    return architecture


def check_weight_files(folder: Path) -> None:
    """Raise unless `folder` has safetensors. Pickled weights can run code, so they are named and refused."""
    if (folder / "adapter_config.json").exists():
        raise UnsupportedModel(f"{folder} holds a LoRA adapter", remedy="Merge it into the weights.")
    if any(folder.glob("*.safetensors")):
        return
    pickled = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for path in folder.glob(pattern))
    if pickled:
        raise UnsupportedModel(
            f"{folder} has pickled weights only ({pickled[0]}), and loading those can run code",
            remedy="Convert them to safetensors.",
        )
    raise ModelUnavailable(f"no safetensors in {folder}", remedy="Fetch the weights: pplx-replay models pull NAME.")


def eos_token_ids(folder: Path, config: dict[str, Any]) -> tuple[int, ...]:
    """The ids that end a sequence: of generation_config.json if it names any, else of config.json."""
    path = folder / "generation_config.json"
    value = _read_json(path).get("eos_token_id") if path.is_file() else None
    if value is None:
        value = config.get("eos_token_id")
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (int(value),)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = strict_json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ModelUnavailable(f"{path} is missing", remedy="Name a folder with config.json and safetensors.") from None
    except strict_json.InvalidJson as error:
        raise ModelUnavailable(f"{path} is not JSON: {error}", remedy="Fetch the weights again.") from None
    if not isinstance(content, dict):
        raise ModelUnavailable(f"{path} does not hold a JSON object", remedy="Fetch the weights again.")
    return content


def _load(folder: Path, architecture: str, dtype: torch.dtype, attention: str) -> Any:
    # Importing transformers takes seconds, and reading a config for its facts does not need it.
    import transformers

    for name, function in ((EXACT, exact_attention), (STOCK, stock_attention)):
        transformers.AttentionInterface.register(name, function)
        transformers.AttentionMaskInterface.register(name, _no_mask)
    try:
        with _quiet():
            model, report = getattr(transformers, architecture).from_pretrained(
                folder,
                dtype=dtype,
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
                attn_implementation=attention,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
    except Exception as error:  # a config.json can be wrong in more ways than there are classes for
        raise ModelUnavailable(
            f"the weights in {folder} cannot be read: {type(error).__name__}: {error}",
            remedy="Fetch the weights again.",
        ) from error
    # transformers fills what it does not find with random numbers.
    for what in ("missing_keys", "mismatched_keys", "unexpected_keys", "error_msgs"):
        if found := sorted(map(str, report.get(what) or ())):
            raise ModelUnavailable(
                f"the safetensors in {folder} do not fit config.json: {what.replace('_', ' ')}, first {found[0]}",
                remedy="Fetch the weights again.",
            )
    return model.eval().requires_grad_(False)


def _no_mask(*unused: Any, **also_unused: Any) -> None:
    """The step's own masks are in its tiles."""


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' progress bars and reports, which would mix with ours on stderr."""
    from transformers.utils import logging

    shown, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shown:
            logging.enable_progress_bar()


def _make_exact(model: Any) -> tuple[int, dict[str, LinearForm]]:
    """Replace linear layers and activations. Returns the row tile and the linear form of each shape."""
    layers: dict[str, list[tuple[Any, str, Any]]] = {}
    for parent in model.modules():
        for name, child in parent.named_children():
            if isinstance(child, torch.nn.Linear):
                shape = f"{child.in_features}x{child.out_features}" + ("" if child.bias is None else "+bias")
                layers.setdefault(shape, []).append((parent, name, child))
            elif name == "act_fn":
                setattr(parent, name, ExactSiLU())
    tile, forms = choose_tile([(found[0][2].weight, found[0][2].bias) for found in layers.values()])
    for form, found in zip(forms, layers.values(), strict=True):
        for parent, name, child in found:
            setattr(parent, name, ExactLinear(KERNELS[form.kernel](child.weight, child.bias), form))
    return tile, dict(zip(layers, forms, strict=True))


def _numerics(
    sizes: TileSizes, forms: dict[str, LinearForm], *, dtype: str, kernels: Kernels, device: str
) -> dict[str, str]:
    import transformers

    facts = {
        "kernels": kernels,
        "dtype": dtype,
        "device": device,
        "torch": torch.__version__,
        # Names the versions of MKL, oneDNN and the compiler.
        "torch_build": hashlib.sha256(torch.__config__.show().encode()).hexdigest()[:16],
        "transformers": transformers.__version__,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "threads": str(torch.get_num_threads()),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "mkldnn": str(torch.backends.mkldnn.is_available()),
        "mkl": str(torch.backends.mkl.is_available()),
    }
    facts |= {name.lower(): os.environ[name] for name in ISA_LIMITS if name in os.environ}
    if kernels == "exact":
        facts |= {
            "row_tile": str(sizes.rows),
            "decode_tile": str(sizes.decode),
            "prefill_tile": str(sizes.prefill),
            "kv_pad": str(sizes.keys),
        }
        facts |= {f"linear_{shape}": str(form) for shape, form in forms.items()}
    return facts

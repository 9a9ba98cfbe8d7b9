"""Loads a model from a local folder of config.json and safetensors, and makes its kernels exact.

Nothing is fetched, nothing in the folder is run, and no pickled weights are read.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from replay import strict_json
from replay.engine.architectures import TESTED, check_supported, windows_of
from replay.engine.attention import EXACT, STOCK, TileSizes
from replay.engine.device import Settings, device_facts, prepare, resolve
from replay.engine.exact_model import make_exact
from replay.engine.kernels.cuda import choose_backend
from replay.engine.kernels.exact import LinearForm, exact_attention
from replay.engine.kernels.stock import stock_attention
from replay.engine.kv_store import DTYPES
from replay.engine.loaded import Kernels, LoadedModel
from replay.engine.probe import AttentionShape, choose_attention
from replay.engine.probe_attention import quicker_attention
from replay.engine.self_check import require_it_runs, require_same_as_transformers
from replay.engine.vector_math import set_up_vector_math
from replay.errors import ModelUnavailable, UnsupportedModel

__all__ = ["TESTED", "Kernels", "LoadedModel", "check_weight_files", "eos_token_ids", "load_model"]

ISA_LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR")
"""Environment variables that hold libraries back to older instructions, whose results have other bits."""

NEEDED_FACTS = ("num_attention_heads", "num_hidden_layers", "hidden_size", "vocab_size", "max_position_embeddings")


MAX_TOKEN_ID = 1 << 31
"""Ids are kept as 32-bit integers."""


def load_model(folder: Path, *, dtype: str, kernels: Kernels = "exact", device: str = "cpu") -> LoadedModel:
    """Load the weights in `folder` in `dtype` ("float32" or "bfloat16") and probe them on the current thread count.

    ``device`` is a word for `replay.engine.device.resolve`, which says what it raises. Raises `ModelUnavailable` when
    the folder holds no usable weights, `UnsupportedModel` when they are not on the tested list. Stock kernels also run
    a model that is not, if it then computes what transformers does.
    """
    if dtype not in DTYPES:
        raise UnsupportedModel(f"dtype {dtype!r} is not supported", remedy=f"Use one of: {', '.join(DTYPES)}.")
    device = resolve(device)
    config = _read_json(folder / "config.json")
    support = check_supported(config, stock=kernels == "stock")
    check_weight_files(folder)
    set_up_vector_math()
    settings = prepare(device) if kernels == "exact" else Settings()  # before anything else touches the device
    whole = _load(folder, support.architecture, DTYPES[dtype], EXACT if kernels == "exact" else STOCK).to(device)
    facts = whole.config
    if missing := [name for name in NEEDED_FACTS if not _is_count(getattr(facts, name, None))]:
        raise UnsupportedModel(
            f"{support.architecture} has no usable {missing[0]}: this engine cannot lay out its cache",
            remedy="Replay the schedule without the model: --target schedule.",
        )
    num_heads = facts.num_attention_heads
    num_kv_heads = getattr(facts, "num_key_value_heads", None) or num_heads
    head_dim = getattr(facts, "head_dim", None) or facts.hidden_size // num_heads
    windows = windows_of(facts)
    if not all(window is None or _is_count(window) for window in windows):
        raise UnsupportedModel(
            f"{support.architecture} with a sliding_window of {facts.sliding_window!r} sees no token at all",
            remedy="Replay the schedule without the model: --target schedule.",
        )
    if support.untested:  # whose layers may tell the attention something else than their types say
        windows = tuple(dict.fromkeys((*windows, None, getattr(facts, "sliding_window", None))))
    sizes = TileSizes(rows=1)
    forms: dict[str, LinearForm] = {}
    if kernels == "exact" and support.tested is not None:
        with torch.inference_mode(), settings.applied():
            tile, forms = make_exact(
                whole, activation=support.tested.activation_of(config), wide_router=support.tested.wide_router
            )
            shape = AttentionShape(num_heads, num_kv_heads, head_dim, DTYPES[dtype], windows)
            most = facts.max_position_embeddings
            if device == "cpu":
                sizes = quicker_attention(shape, choose_attention(shape, rows=tile, max_keys=most))
            else:
                settings, sizes = choose_backend(shape, settings, rows=tile, max_keys=most, device=device)
        # One tensor keeps the whole file mapped, and the packed weights are copies already.
        for parameter in whole.parameters():
            parameter.data = parameter.data.clone()
    loaded = LoadedModel(
        model=whole.base_model,
        head=whole.lm_head,
        architecture=support.architecture,
        vocab_size=facts.vocab_size,
        max_position_embeddings=facts.max_position_embeddings,
        learned_positions=support.tested is not None and support.tested.learned_positions,
        num_layers=facts.num_hidden_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        hidden_size=facts.hidden_size,
        windows=windows,
        eos_token_ids=eos_token_ids(folder, config),
        dtype=dtype,
        device=device,
        kernels=kernels,
        untested=support.untested,
        sizes=sizes,
        settings=settings,
        threads=torch.get_num_threads(),
        numerics=_numerics(sizes, forms, settings, dtype=dtype, kernels=kernels, device=device),
    )
    require_it_runs(loaded)
    if support.untested:
        require_same_as_transformers(whole, loaded)
    return loaded


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and value >= 1


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
    """The ids that end a sequence: of generation_config.json if it names any, else of config.json.

    Raises `ModelUnavailable` for what are no token ids.
    """
    path = folder / "generation_config.json"
    value = _read_json(path).get("eos_token_id") if path.is_file() else None
    if value is None:
        value = config.get("eos_token_id")
    if value is None:
        return ()
    ids = tuple(value) if isinstance(value, list) else (value,)
    if not all(type(one) is int and 0 <= one < MAX_TOKEN_ID for one in ids):
        raise ModelUnavailable(f"{folder} names {value!r} as eos_token_id", remedy="Fetch the weights again.")
    return ids


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = strict_json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ModelUnavailable(f"{path} is missing", remedy="Name a folder with config.json and safetensors.") from None
    except OSError as error:
        raise ModelUnavailable(f"{path} cannot be read: {error}", remedy="Name a folder with its own files.") from None
    except strict_json.InvalidJson as error:
        raise ModelUnavailable(f"{path} is not JSON: {error}", remedy="Fetch the weights again.") from None
    if not isinstance(content, dict):
        raise ModelUnavailable(f"{path} does not hold a JSON object", remedy="Fetch the weights again.")
    return content


def _load(folder: Path, architecture: str, dtype: torch.dtype, attention: str) -> Any:
    # Importing transformers takes seconds, and reading a config for its facts does not need it.
    import transformers

    if not hasattr(transformers, architecture):
        raise UnsupportedModel(
            f"transformers {transformers.__version__} has no architecture {architecture}",
            remedy="Replay the schedule without the model: --target schedule.",
        )
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
    # With it transformers looks at every step's ids for padding, and warns on stderr where it sees some.
    model.config.pad_token_id = None
    if not hasattr(model, "lm_head"):
        raise UnsupportedModel(f"{architecture} has no language model head", remedy="Name a causal language model.")
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


def _numerics(
    sizes: TileSizes,
    forms: dict[str, LinearForm],
    settings: Settings,
    *,
    dtype: str,
    kernels: Kernels,
    device: str,
) -> dict[str, str]:
    import transformers

    numerics = {
        "kernels": kernels,
        "dtype": dtype,
        "device": device.partition(":")[0],
        "torch": torch.__version__,
        # Names the versions of MKL, oneDNN and the compiler.
        "torch_build": hashlib.sha256(torch.__config__.show().encode()).hexdigest()[:16],
        "transformers": transformers.__version__,
    }
    if device == "cpu":
        numerics |= {
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
            "threads": str(torch.get_num_threads()),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "mkldnn": str(torch.backends.mkldnn.is_available()),
            "mkl": str(torch.backends.mkl.is_available()),
        }
        numerics |= {name.lower(): os.environ[name] for name in ISA_LIMITS if name in os.environ}
    else:
        numerics |= device_facts(device, settings)
    if kernels == "exact":
        numerics |= {
            "row_tile": str(sizes.rows),
            "decode_tile": str(sizes.decode),
            "prefill_tile": str(sizes.prefill),
            "kv_pad": " ".join(map(str, (*sizes.tails, sizes.keys))),
            "bulk_queries": str(sizes.bulk),
        }
        if sizes.alone:
            numerics["attention"] = "one tile a call"
        numerics |= {f"linear_{shape}": str(form) for shape, form in forms.items()}
    return numerics

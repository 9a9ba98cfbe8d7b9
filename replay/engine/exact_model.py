"""Replaces what is not row-invariant in a model of transformers', and proves the rest on random rows.

Linear layers, activations, routers and experts are replaced. Norms and rotary embeddings are run as they are, after a
probe. A module of any other kind is refused, so that nothing is taken on trust.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from replay.engine.kernels.activations import EXACT_ACTIVATIONS
from replay.engine.kernels.exact import KERNELS, ExactLinear, LinearForm, LinearFunction
from replay.engine.kernels.moe import ExactExperts, ExactRouter
from replay.engine.probe import ROWS, choose_tile, require_rows_agree
from replay.engine.probe_rows import random_rows
from replay.errors import UnsupportedModel

ACTIVATION_NAMES = frozenset({"act", "act_fn", "activation_fn"})
"""What transformers' model code calls the activation of a feed-forward layer."""

ACTIVATION_WIDTH = 1031
"""Features of the rows an activation is probed on: a prime, so that vector bodies end everywhere."""


@dataclass(slots=True, kw_only=True)
class _Linear:
    """A linear layer to be replaced: `weight` is [out, in]. ``put`` takes what replaces it."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None
    put: Callable[[ExactLinear], None] = lambda layer: None
    made: ExactLinear = field(init=False)

    @property
    def shape(self) -> str:
        rows, columns = self.weight.shape
        return f"{columns}x{rows}" + ("" if self.bias is None else "+bias")


def make_exact(model: Any, *, activation: str, wide_router: bool) -> tuple[int, dict[str, LinearForm]]:
    """Make `model`, a causal language model of transformers', row-invariant in place.

    ``activation`` is its name in config.json; ``wide_router`` says that routing weights stay float32. Returns the row
    tile and the linear form of each shape. Raises `NoExactKernel` where a probe fails, `UnsupportedModel` for a kind of
    module that is not known here.
    """
    linears: list[_Linear] = []
    routers: list[tuple[Any, str, Any, _Linear]] = []
    experts: list[tuple[Any, str, list[_Linear], list[_Linear]]] = []
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            kind = type(child).__name__
            if isinstance(child, torch.nn.Linear):
                linears.append(_Linear(weight=child.weight, bias=child.bias, put=partial(setattr, parent, name)))
            elif kind == "Conv1D":  # GPT-2's linear layer, with its weights the other way round
                linears.append(_Linear(weight=child.weight.t(), bias=child.bias, put=partial(setattr, parent, name)))
            elif kind.endswith("TopKRouter"):
                linears.append(_Linear(weight=child.weight))
                routers.append((parent, name, child, linears[-1]))
            elif kind.endswith("Experts"):
                gate_up, down = ([_Linear(weight=w) for w in part] for part in (child.gate_up_proj, child.down_proj))
                linears += [*gate_up, *down]
                experts.append((parent, name, gate_up, down))
            elif name in ACTIVATION_NAMES:
                setattr(parent, name, EXACT_ACTIVATIONS[activation]())
    tile, forms = _replace(linears)
    for parent, name, child, linear in routers:
        normalise = bool(getattr(child, "norm_topk_prob", True))
        setattr(parent, name, ExactRouter(linear.made, top_k=child.top_k, normalise=normalise, wide=wide_router))
    for parent, name, gate_up, down in experts:
        act = EXACT_ACTIVATIONS[activation]()
        setattr(parent, name, ExactExperts([w.made for w in gate_up], [w.made for w in down], act, tile=tile))
    _prove_the_rest(model, tile=tile)
    return tile, forms


def _replace(linears: list[_Linear]) -> tuple[int, dict[str, LinearForm]]:
    """Build an exact layer for each. Returns the row tile and the form of each shape."""
    shapes: dict[str, list[_Linear]] = {}
    for linear in linears:
        shapes.setdefault(linear.shape, []).append(linear)
    tile, forms = choose_tile([(found[0].weight.contiguous(), found[0].bias) for found in shapes.values()])
    for form, found in zip(forms, shapes.values(), strict=True):
        for linear in found:
            linear.made = ExactLinear(KERNELS[form.kernel](linear.weight.contiguous(), linear.bias), form)
            linear.put(linear.made)
    return tile, dict(zip(shapes, forms, strict=True))


def _prove_the_rest(model: Any, *, tile: int) -> None:
    """Probe one module of each kind and size that was left as it is."""
    dtype, device, limit = model.dtype, model.device, model.config.max_position_embeddings
    done: set[tuple[str, int]] = set()
    for name, module in model.named_modules():
        kind = type(module).__name__
        known = (ExactLinear, torch.nn.Embedding, torch.nn.Dropout, torch.nn.Identity)
        if any(True for _ in module.children()) or isinstance(module, known):
            continue
        features = module.weight.shape[0] if kind.endswith("Norm") else 0
        if (kind, features) in done:
            continue
        done.add((kind, features))
        if features:
            # An RMSNorm computes in float32 and rounds at its end, which would hide the order of its sum.
            rows = random_rows(ROWS, features, torch.float32 if kind.endswith("RMSNorm") else dtype, device)
            require_rows_agree(f"{kind} of {features}", module, rows, tile=tile)
        elif any(type(module) is exact for exact in EXACT_ACTIVATIONS.values()):
            require_rows_agree(kind, module, random_rows(ROWS, ACTIVATION_WIDTH, dtype, device) * 4, tile=tile)
        elif kind.endswith("RotaryEmbedding"):
            positions = torch.arange(ROWS, dtype=torch.float32, device=device)[:, None] * (limit / ROWS)
            for function in _rotations(module, dtype):
                require_rows_agree(kind, function, positions.floor(), tile=tile)
        else:
            raise UnsupportedModel(
                f"{name} is a {kind}, which is not known to be exact", remedy="--kernels stock runs it as it is."
            )


def _rotations(module: Any, dtype: torch.dtype) -> list[LinearFunction]:
    """Functions from positions [rows, 1] to cosines and sines [rows, n], one for each type of layer."""
    return [partial(_rotate, module, dtype, kind) for kind in getattr(module, "layer_types", (None,))]


def _rotate(module: Any, dtype: torch.dtype, kind: str | None, positions: torch.Tensor) -> torch.Tensor:
    """Cosines and sines [rows, n] of positions [rows, 1], as `module` computes them for a type of layer."""
    types = () if kind is None else (kind,)
    like = torch.zeros((), dtype=dtype, device=positions.device)
    return torch.cat(module(like, positions.long().t(), *types), dim=-1)[0]

"""What is replaced in a model, what is probed, and that nothing is taken on trust."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from replay.engine.exact_model import make_exact
from replay.engine.kernels.activations import ExactGeluTanh
from replay.engine.kernels.exact import ExactLinear
from replay.engine.probe import NoExactKernel
from replay.engine.probe_rows import random_rows
from replay.errors import UnsupportedModel


class Conv1D(torch.nn.Module):  # type: ignore[misc]  # torch is not type-checked here
    """A linear layer with weights [in, out], as GPT-2 has it in transformers."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(random_rows(inputs, outputs, torch.float32))
        self.bias = torch.nn.Parameter(torch.arange(float(outputs)))

    def forward(self, hidden):
        return hidden @ self.weight + self.bias


class GoodRMSNorm(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(size))

    def forward(self, hidden):
        return self.weight * (hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True)))


class BatchRMSNorm(GoodRMSNorm):
    """Looks at the whole call."""

    def forward(self, hidden):
        return hidden / hidden.pow(2).mean()


class BatchRotaryEmbedding(torch.nn.Module):  # type: ignore[misc]
    """Frequencies by the longest position of the call, as rotary type "dynamic" has them."""

    def forward(self, like, positions):
        angles = positions[..., None] / positions.max()
        return angles.cos(), angles.sin()


class Model(torch.nn.Module):  # type: ignore[misc]
    """As much of a causal language model as the loader looks at."""

    dtype, device = torch.float32, torch.device("cpu")
    config = SimpleNamespace(max_position_embeddings=128)

    def __init__(self, **parts: torch.nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)


def exact(**parts: torch.nn.Module) -> Model:
    model = Model(head=torch.nn.Linear(16, 40, bias=False), **parts)
    with torch.inference_mode():
        make_exact(model, activation="gelu_new", wide_router=False)
    return model


def test_linear_layers_of_both_kinds_and_activations_are_replaced_by_what_computes_the_same():
    conv = Conv1D(16, 24)
    rows = random_rows(8, 16, torch.float32)
    expected = conv(rows)
    model = exact(conv=conv, act=torch.nn.GELU(), norm=GoodRMSNorm(16), drop=torch.nn.Dropout(0.1))
    assert isinstance(model.conv, ExactLinear)
    assert isinstance(model.head, ExactLinear)
    assert isinstance(model.act, ExactGeluTanh)
    assert torch.allclose(model.conv(rows), expected, rtol=1e-5, atol=1e-4)


def test_a_norm_or_a_rotation_that_looks_at_the_whole_call_is_found_out():
    with pytest.raises(NoExactKernel, match="BatchRMSNorm of 16"):
        exact(norm=BatchRMSNorm(16))
    with pytest.raises(NoExactKernel, match="BatchRotaryEmbedding"):
        exact(rotary=BatchRotaryEmbedding())


def test_a_kind_of_module_that_is_not_known_is_refused_by_name():
    with pytest.raises(UnsupportedModel, match="strange is a PReLU") as caught:
        exact(strange=torch.nn.PReLU())
    assert "--kernels stock" in caught.value.remedy

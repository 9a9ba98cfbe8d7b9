"""Vector functions of the CPU are called for the first time by one thread.

MKL sets its vector functions up in the first call of any. When two threads make that call together, the part of one may
be computed in a lower accuracy: with two threads the first `exp` of a process was off by 1.5e-4 in 10 of 1,150
processes, and in none of 2,298 after a call by one thread. A probe took that for a kernel without exact bits.
"""

from __future__ import annotations

import torch

FUNCTIONS = (torch.cos, torch.erf, torch.exp, torch.log, torch.sin, torch.tanh)
"""Those that activations and rotary embeddings use, and a few more."""


def set_up_vector_math() -> None:
    """Call each function on one element, which torch never shares out. To be done before anything is computed."""
    for function in FUNCTIONS:
        function(torch.ones(1))

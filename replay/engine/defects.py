"""Switches for defects that real engines had, read by the code that would have them. Off unless a quirk is named."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Defects:
    """``register_early``: the prefix cache knows a block from its allocation on, before anything was written to it.

    ``abort_twice``: an abort that comes after its request has finished makes the next step raise.
    ``multinomial``: tokens are drawn by `torch.multinomial` from float16 probabilities, which may not be finite.
    ``prompt_unchecked``, ``token_ids_unchecked``, ``positions_unchecked``: a server takes in what it would refuse:
    prompts that its KV pool cannot hold, token ids in sampling parameters that its model does not have, and more
    positions than its model has.
    """

    register_early: bool = False
    abort_twice: bool = False
    multinomial: bool = False
    prompt_unchecked: bool = False
    token_ids_unchecked: bool = False
    positions_unchecked: bool = False


NO_DEFECTS = Defects()

"""Noise or corruption: what the three computations of the recorded tokens say, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replay.divergence import NOISE

NOISE_ONLY, CORRUPTION, NEITHER = "noise", "corruption", "neither"


def conclusion(numbers: Mapping[str, Any]) -> str:
    """Whether what differs is rounding, is more than that, or nothing differs.

    How far stock kernels are off is no part of it: they are a measure of rounding, and were not what ran.
    """
    record, batch = numbers["record_and_batch"], numbers["alone_and_batch"]
    if (
        batch["bits"]
        or record["beyond_noise"]
        or (record["bits"] and numbers["strict"])
        or _came_from_elsewhere(numbers)
    ):
        return CORRUPTION
    return NOISE_ONLY if record["token"] or record["bits"] else NEITHER


def in_words(numbers: Mapping[str, Any]) -> list[str]:
    """One sentence or two for each comparison, then what they come to."""
    record, batch, stock = (numbers[name] for name in ("record_and_batch", "alone_and_batch", "batch_and_stock"))
    return [
        _alone(batch),
        _recorded(record, numbers),
        *_failing(numbers),
        _stock(stock, numbers["dtype"]),
        _VERDICTS[conclusion(numbers)],
    ]


_VERDICTS = {
    NOISE_ONLY: "Noise: rounding explains all that differs.",
    CORRUPTION: "Corruption: what differs is more than rounding can do.",
    NEITHER: "Neither noise nor corruption: the numbers are those that the tokens give, so the failure is not in them.",
}


def _alone(found: Mapping[str, Any]) -> str:
    """Exact kernels do not know who else is in the batch."""
    if not found["compared"]:
        return "Alone and in the recorded batches: no token was drawn both ways."
    if not found["bits"]:
        return (
            f"Alone and in the recorded batches, with exact kernels: the same bits at {_all(found)}. "
            "No request changed what another one drew."
        )
    text = (
        f"Alone and in the recorded batches, with exact kernels: other bits at {found['other_bits']} of "
        f"{_tokens(found['compared'])}, first {_where(found['bits'])}. That is no rounding: these kernels give the "
        "same bits in any batch: in the batch the request read what is not its own."
    )
    return text + _first_token(found, "alone", "in the batch")


def _recorded(found: Mapping[str, Any], numbers: Mapping[str, Any]) -> str:
    if not found["compared"]:
        return "Recorded: no token was drawn that is on record."
    how = "on the same platform" if numbers["strict"] else "on another platform"
    if numbers["recorded_kernels"] == "stock":
        how = "with stock kernels"
    what = f"Recorded {how} and computed again in the batches: "
    if found["bits"]:
        text = f"other bits in {found['other_bits']} rows of logits, first {_where(found['bits'])}."
        return what + text + _first_token(found, "recorded", "computed")
    if found["token"]:
        text = f"{found['other_tokens']} of {_tokens(found['compared'])} are others."
        return what + text + _first_token(found, "recorded", "computed")
    return what + f"the same {_tokens(found['compared'])}."


def _failing(numbers: Mapping[str, Any]) -> list[str]:
    draw = numbers["failing_draw"]
    if draw is None:
        return []
    ways = {name: draw[name] for name in ("alone", "batch", "stock") if draw[name] is not None}
    if not ways:
        return []
    place = (
        f"At the failing draw, request {draw['request_id']}, output token {draw['output_index']}, the recorded logits "
    )
    finite = [name for name, one in ways.items() if one["finite"]]
    if len(finite) == len(ways):
        margins = ", ".join(f"{name} {one['margin']:.4g}" for name, one in ways.items())
        return [
            f"{place}were not finite. Computed from the tokens they are, in each way (top two apart: {margins}): they "
            "were damaged by something that is not in the tokens."
        ]
    if not finite:
        return [f"{place}were not finite, nor are they computed again, in any way: the tokens themselves lead there."]
    return [f"{place}were not finite. Computed from the tokens they are in these ways only: {', '.join(finite)}."]


def _came_from_elsewhere(numbers: Mapping[str, Any]) -> bool:
    """Whether the failing draw is sound where its request is computed alone."""
    draw = numbers["failing_draw"]
    return draw is not None and draw["alone"] is not None and bool(draw["alone"]["finite"])


def _stock(found: Mapping[str, Any], dtype: str) -> str:
    what = "The recorded batches with stock kernels, for what rounding can do here: "
    if not found["bits"]:
        return what + f"the same bits at {_all(found)}."
    text = f"other bits at {found['other_bits']} of {_tokens(found['compared'])}, first {_where(found['bits'])}; "
    if not found["token"]:
        return what + text + "no other token."
    text += f"{_tokens(found['other_tokens'], 'other token')}."
    if found["beyond_noise"]:
        text += f" At {found['beyond_noise']} of them the recorded token lies more than {NOISE[dtype]:g} below the top."
    return what + text + _first_token(found, "exact", "stock")


def _first_token(found: Mapping[str, Any], one: str, other: str) -> str:
    first = found["token"]
    if not first:
        return " The tokens are the same."
    text = f" First other token {_where(first)}: {one} {first['one']}, {other} {first['other']}"
    if first["gap"] is not None:
        within = "within" if first["cause"] == "noise" else "not within"
        text += f"; the recorded one lies {first['gap']:.4g} below the top, {within} rounding"
    return text + "."


def _where(first: Mapping[str, Any]) -> str:
    step = "" if first["step"] is None else f", step {first['step']}"
    margin = "" if first["margin"] is None else f", top two {first['margin']:.4g} apart"
    return f"at request {first['request_id']}, output token {first['output_index']}{step}{margin}"


def _tokens(number: int, name: str = "token") -> str:
    return f"{number} {name}{'s' * (number != 1)}"


def _all(found: Mapping[str, Any]) -> str:
    return f"all {found['compared']} tokens" if found["compared"] > 1 else "the one token"

"""What the same tokens draw when they are computed in several ways, and where the ways part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from replay.divergence import NOISE

Place = tuple[str, int]
"""Request id, and index in its answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """The row of logits that one token was drawn from: its ``digest``, what is drawn from it, and how close it was.

    ``margin`` is the top logit minus the second, ``gap`` how far the recorded token lies below the top; both None where
    the row is not ``finite``, ``gap`` also where no token was recorded. ``step`` is that of the recorded draw.
    """

    token: int
    digest: int
    finite: bool = True
    margin: float | None = None
    gap: float | None = None
    step: int | None = None


Draws = Mapping[Place, Draw]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What the record says of the same places: tokens, digests of logits where there are any, and requests whose tokens
    depend on noise of their sampling, so that the gap to the top says nothing. ``steps`` give the order of places."""

    tokens: Mapping[Place, int]
    digests: Mapping[Place, int] = field(default_factory=dict)
    sampled: frozenset[str] = frozenset()
    steps: Mapping[Place, int] = field(default_factory=dict)

    def in_order(self, places: Iterable[Place]) -> list[Place]:
        """As they were drawn; what lies before the record first, what lies behind it last."""
        late = max(self.steps.values(), default=0) + 1
        return sorted(places, key=lambda place: (self.steps.get(place, -1 if place in self.tokens else late), place))


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """The first place at which two ways part. ``cause`` is "noise" where rounding explains it, else "corruption"."""

    request_id: str
    output_index: int
    step: int | None
    one: str
    other: str
    margin: float | None
    gap: float | None
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """``compared`` places; the first with other ``bits`` of logits, the first with another ``token``, and how many of
    each. ``beyond_noise`` counts tokens that rounding does not explain."""

    compared: int
    bits: Parting | None = None
    token: Parting | None = None
    other_bits: int = 0
    other_tokens: int = 0
    beyond_noise: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def compare(one: Draws, other: Draws, recorded: Recorded, *, dtype: str, exact: bool) -> Comparison:
    """Two computations of the same tokens. ``exact``: both must give the same bits, so that no difference is noise."""
    places = recorded.in_order(place for place in one if place in other)
    bits = [place for place in places if one[place].digest != other[place].digest]
    tokens = [place for place in bits if one[place].token != other[place].token]

    def parting(place: Place, shown: str) -> Parting:
        a, b = one[place], other[place]
        words = (f"{a.digest:016x}", f"{b.digest:016x}") if shown == "bits" else (_token(a), _token(b))
        return _parting(place, words, b, recorded, _cause(place, b, recorded, dtype=dtype, exact=exact))

    beyond = sum(_cause(place, other[place], recorded, dtype=dtype, exact=exact) == "corruption" for place in tokens)
    return Comparison(
        compared=len(places),
        bits=parting(bits[0], "bits") if bits else None,
        token=parting(tokens[0], "token") if tokens else None,
        other_bits=len(bits),
        other_tokens=len(tokens),
        beyond_noise=beyond,
    )


def compare_recorded(draws: Draws, recorded: Recorded, *, dtype: str, exact: bool) -> Comparison:
    """A computation with the record. ``exact``: the record is of the same platform and kernels."""
    places = recorded.in_order(place for place in draws if place in recorded.tokens)
    digests = [place for place in places if exact and place in recorded.digests]
    bits = [place for place in digests if recorded.digests[place] != draws[place].digest]
    tokens = [
        place
        for place in places
        if recorded.tokens[place] != draws[place].token and (exact or place[0] not in recorded.sampled)
    ]
    beyond = [place for place in tokens if _cause(place, draws[place], recorded, dtype=dtype, exact=exact) != "noise"]

    def parting(place: Place, words: tuple[str, str]) -> Parting:
        cause = _cause(place, draws[place], recorded, dtype=dtype, exact=exact)
        return _parting(place, words, draws[place], recorded, cause)

    first = bits[0] if bits else None
    return Comparison(
        compared=len(places),
        bits=None if first is None else parting(first, (f"{recorded.digests[first]:016x}", _hex(draws[first]))),
        token=parting(tokens[0], (f"token {recorded.tokens[tokens[0]]}", _token(draws[tokens[0]]))) if tokens else None,
        other_bits=len(bits),
        other_tokens=len(tokens),
        beyond_noise=len(beyond),
    )


def _cause(place: Place, draw: Draw, recorded: Recorded, *, dtype: str, exact: bool) -> str:
    """A draw with noise of its own sampling is a little away from its bits: then nothing but bits can be judged."""
    if exact or not draw.finite:
        return "corruption"
    if place[0] in recorded.sampled or draw.gap is None:
        return "noise"
    return "noise" if draw.gap <= NOISE[dtype] else "corruption"


def _parting(place: Place, words: tuple[str, str], draw: Draw, recorded: Recorded, cause: str) -> Parting:
    return Parting(
        request_id=place[0],
        output_index=place[1],
        step=recorded.steps.get(place, draw.step),
        one=words[0],
        other=words[1],
        margin=draw.margin,
        gap=draw.gap,
        cause=cause,
    )


def _hex(draw: Draw) -> str:
    return f"{draw.digest:016x}"


def _token(draw: Draw) -> str:
    return f"token {draw.token}" if draw.finite else "no finite logits"

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumps.record.secrets import BodyScrubber, mask_header, masked, scrub_text
from dumps.record.web_token import mask

SECRET = "hunter2-correct-horse"


def part(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def token(claims: Any, header: Any = None, signature: str = "c2lnbmVkIGJ5IHVz") -> str:
    return f"{part(header or {'alg': 'HS256', 'typ': 'JWT', 'kid': SECRET})}.{part(claims)}.{signature}"


def read(text: str) -> Any:
    return json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))


def test_its_claims_can_be_read_and_its_texts_are_gone() -> None:
    whole = token({"exp": 1796074843, "iat": 1.5e9, "sub": SECRET, "admin": True, "roles": [SECRET, 7, None]})
    body = json.dumps({"access_token": whole, "expires_in": 60}).encode()
    kept = masked(body, BodyScrubber("application/json").feed(body))
    assert len(kept) == len(body)
    shown = json.loads(kept)["access_token"]
    header, claims, signature = shown.split(".")
    x = "x" * len(SECRET)
    assert read(header) == {"alg": "HS256", "typ": "JWT", "kid": x}
    assert read(claims) == {"exp": 1796074843, "iat": 1.5e9, "sub": x, "admin": True, "roles": [x, 7, None]}
    assert signature == "x" * 16
    assert masked(kept, BodyScrubber("application/json").feed(kept)) == kept


def test_in_a_cookie_and_in_prose() -> None:
    whole = token({"exp": 7, "sub": SECRET})
    kept = mask_header("Set-Cookie", f"sid={whole}; Path=/")
    assert read(kept.split(".")[1])["exp"] == 7
    assert kept.endswith("; Path=/")
    assert scrub_text(f"bad token {whole}") == "bad token REMOVED", "what is written anew keeps no shape"


@pytest.mark.parametrize(
    "data",
    [
        token([1, 2]),
        f"{part({'alg': 'none'})}.eyJub3QganNvbiA.c2lnbmVk",
        f"eyJub3QganNvbiA.{part({'exp': 1})}.c2lnbmVk",
        f"{part({'alg': 'none'})}.{part({'exp': 1})}",
        SECRET,
    ],
)
def test_what_is_no_whole_token_is_masked_byte_by_byte(data: str) -> None:
    assert mask(data.encode()) == b"x" * len(data)


@given(
    claims=st.dictionaries(
        st.sampled_from(["exp", "sub", "aud", "data"]),
        st.recursive(
            st.integers() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(min_size=1),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
        ),
        min_size=1,
    ),
    ascii_only=st.booleans(),
)
def test_numbers_stay_and_no_text_does(claims: dict[str, Any], ascii_only: bool) -> None:
    text = json.dumps(claims, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    payload = base64.urlsafe_b64encode(text).decode().rstrip("=")
    whole = f"{part({'alg': 'RS256'})}.{payload}.c2lnbmVk".encode()
    kept = mask(whole)
    assert len(kept) == len(whole)
    if kept == b"x" * len(whole):  # a lone surrogate: no JSON
        return
    shown = read(kept.split(b".")[1].decode())
    assert _bare(shown) == _bare(claims)
    assert set("".join(_texts(shown))) <= {"x"}


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    members = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return [text for one in members for text in _texts(one)]


def _bare(value: Any) -> Any:
    """``value`` with one letter for every text."""
    if isinstance(value, str):
        return "t"
    if isinstance(value, list):
        return [_bare(one) for one in value]
    return {name: _bare(one) for name, one in value.items()} if isinstance(value, dict) else value

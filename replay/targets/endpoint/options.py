"""What a replay against an endpoint is asked for, checked."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

from replay.errors import UsageError
from replay.report import finding

TARGET = "endpoint="
API_KEY_ENV = "OPENAI_API_KEY"
MAX_REPEAT = 1000

# Options of other targets, with the values that ask for nothing.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "mode": ("auto",),
    "scope": ("engine",),
    "kernels": ("exact",),
    "schedule": ("recorded",),
    "kv": ("auto",),
    "device": ("auto",),
    "checks": ("on",),
    "window": (None,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointOptions:
    """``url`` is the base that "/completions" is put behind, without a slash at its end. ``model`` is what the
    endpoint calls its model, None for the recorded name. ``api_key_env`` names a variable, None stands for
    OPENAI_API_KEY; ``proxy`` is a URL, and None means none, whatever the environment says."""

    url: str
    model: str | None = None
    api_key_env: str | None = None
    proxy: str | None = None
    signature: str | None = None
    repeat: int = 1
    timeout_s: float | None = None
    salvage: bool = False
    full: bool = False


def is_endpoint(target: object) -> bool:
    return isinstance(target, str) and target.startswith(TARGET)


def endpoint_options(job: Mapping[str, Any]) -> EndpointOptions:
    """Raises `UsageError` that names the option and what it wants."""
    for name, values in _NEUTRAL.items():
        if job.get(name, values[0]) not in values:
            raise UsageError(
                f"--{name} changes nothing in --target endpoint, which knows the server from outside only",
                remedy="leave it out",
            )
    if settings := job.get("set"):
        raise UsageError(
            f"--set {next(iter(settings))} cannot be changed in a server that only its owner sets up",
            remedy="start the server with other settings and give its URL again",
        )
    texts = {name: _text(job, name) for name in ("model", "api_key_env", "proxy", "signature")}
    if texts["proxy"] is not None:
        _web_address(texts["proxy"], name="proxy")
    repeat, timeout = job.get("repeat", 1), job.get("timeout_s")
    if type(repeat) is not int or not 1 <= repeat <= MAX_REPEAT:
        raise UsageError(f"repeat: wants an integer from 1 to {MAX_REPEAT}, got {repeat!r}")
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0):
        raise UsageError(f"timeout: wants a positive number of seconds, got {timeout!r}")
    return EndpointOptions(
        url=_base(str(job.get("target", "")).removeprefix(TARGET)),
        repeat=repeat,
        timeout_s=timeout,
        salvage=bool(job.get("salvage", False)),
        full=bool(job.get("full", False)),
        **texts,
    )


def api_key(options: EndpointOptions, environ: Mapping[str, str]) -> tuple[str, list[dict[str, Any]]]:
    """The key to send, "" for none, and what a reader should know about it.

    The usual variable may hold a key for somebody else's service. It is not sent in the clear to another machine
    unless its name was given. Raises `UsageError` where a variable that was named is not set.
    """
    name = options.api_key_env or API_KEY_ENV
    key = environ.get(name, "").strip()
    if options.api_key_env and not key:
        raise UsageError(f"api-key-env: the variable {name} is not set", remedy="export it, or leave the option out")
    if not (key.isascii() and key.isprintable()):
        raise UsageError(f"api-key-env: {name} holds characters that no HTTP header can carry", remedy="set it again")
    address = urlsplit(options.url)
    if key and not options.api_key_env and address.scheme == "http" and not _is_loopback(address.hostname or ""):
        message = f"{name} is set and was not sent: {address.hostname} is reached without TLS"
        return "", [finding("api-key-not-sent", message, remedy=f"name it with --api-key-env {name} to send it")]
    return key, []


def _base(text: str) -> str:
    """A URL without a path gets /v1, as servers have it; any other is taken as it is."""
    address = _web_address(text, name="target")
    path = address.path.rstrip("/")
    return f"{address.scheme}://{address.netloc}{path or '/v1'}"


def _web_address(text: str, *, name: str) -> SplitResult:
    remedy = "write it as http://HOST:PORT/v1; a key goes into an environment variable, see --api-key-env"
    try:
        address = urlsplit(text)
        _ = address.port  # parsed when it is asked for
    except ValueError as error:
        raise UsageError(f"{name}: not a usable URL: {error}", remedy=remedy) from error
    if address.scheme not in ("http", "https") or not address.hostname:
        raise UsageError(f"{name}: {text[:200]!r} is no http or https URL", remedy=remedy)
    if address.username is not None or address.password is not None:
        # Not echoed: it would stand in the report and in the shell's scrollback.
        raise UsageError(f"{name}: the URL holds a user name or a password", remedy=remedy)
    if address.query or address.fragment or any(c.isspace() for c in text):
        raise UsageError(f"{name}: {text[:200]!r} is not a base URL: it has more than a path", remedy=remedy)
    return address


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _text(job: Mapping[str, Any], name: str) -> str | None:
    value = job.get(name)
    if value is not None and (not isinstance(value, str) or not value):
        raise UsageError(f"{name.replace('_', '-')}: wants text, got {value!r}")
    return value

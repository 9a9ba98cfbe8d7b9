"""The settings that ``--set KEY=VALUE`` may change in a replay: one typed registry, shared by command and server."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from replay.engine.quirks import KINDS
from replay.engine.request import InternalFlags, SamplingParams
from replay.engine.schedule import EngineConfig, OnExhausted
from replay.errors import UsageError

DTYPES = ("float32", "bfloat16")
BOOLEANS = ("true", "false")
AS_IN = "write it as --set kv.num_blocks=96"

# What int() and float() take beside these (underscores, blanks, digits of other scripts, "08") is a slip of the pen.
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,24}")
_NUMBER = re.compile(r"[-+]?([0-9]{1,25}(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]{1,4})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """``field`` names the attribute it changes; ``changes_tokens`` says that recorded tokens no longer apply."""

    key: str
    kind: type
    help: str
    field: str
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    changes_tokens: bool = False


def _count(key: str, name: str, text: str) -> Setting:
    return Setting(key=key, kind=int, field=name, help=text, minimum=1)


def _sampling(name: str, kind: type, text: str) -> Setting:
    return Setting(key=f"sampling.{name}", kind=kind, field=name, help=text, changes_tokens=True)


SETTINGS: Mapping[str, Setting] = {
    setting.key: setting
    for setting in (
        _count("kv.num_blocks", "num_blocks", "blocks in the KV pool"),
        _count("kv.block_size", "block_size", "tokens per KV block"),
        Setting(
            key="kv.quant_bits",
            kind=int,
            field="kv_quant_bits",
            choices=("0", "8"),
            help="bits of a value in the KV cache; 0 is the dtype of the computation",
            changes_tokens=True,
        ),
        _count("model.max_model_len", "max_model_len", "prompt and output tokens of one request"),
        _count("scheduler.max_num_seqs", "max_num_seqs", "requests running at once"),
        _count("scheduler.max_num_batched_tokens", "max_num_batched_tokens", "tokens in one step"),
        Setting(
            key="scheduler.on_kv_exhausted",
            kind=str,
            field="on_kv_exhausted",
            choices=tuple(policy.value for policy in OnExhausted),
            help="what happens to a running request that finds no block",
        ),
        Setting(
            key="scheduler.prefix_cache",
            kind=str,
            field="prefix_cache",
            choices=BOOLEANS,
            help="whether blocks of equal prefixes are shared",
        ),
        Setting(
            key="model.dtype",
            kind=str,
            field="dtype",
            choices=DTYPES,
            help="dtype of the computation",
            changes_tokens=True,
        ),
        _sampling("temperature", float, "0 is greedy; applies to every request"),
        _sampling("top_k", int, "0 is off"),
        _sampling("top_p", float, "1 is off"),
        _sampling("min_p", float, "0 is off"),
        _sampling("seed", int, "of every request"),
        _sampling("max_tokens", int, "output tokens of every request, 0 for no limit"),
        _sampling("repetition_penalty", float, "1 is off"),
        _sampling("presence_penalty", float, "0 is off"),
        _sampling("frequency_penalty", float, "0 is off"),
        _sampling("early_exit", float, "confidence that ends an answer, at most 1; 0 is off"),
        *(
            Setting(
                key=f"quirk.{kind.name}",
                kind=str,
                field="quirk",
                choices=("off",),
                help="replay without this recorded defect",
                changes_tokens=kind.changes_tokens,
            )
            for kind in KINDS.values()
        ),
    )
}


# Of the sampling settings only the length of an answer means anything without a model.
NEEDS_MODEL = (
    frozenset(key for key, setting in SETTINGS.items() if setting.changes_tokens and setting.field != "quirk")
    | {f"quirk.{kind.name}" for kind in KINDS.values() if kind.needs_model}
) - {"sampling.max_tokens"}


@dataclass(frozen=True, slots=True)
class Overrides:
    """Checked settings, ready to be applied."""

    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def changes_tokens(self) -> bool:
        return any(SETTINGS[key].changes_tokens for key in self.values)

    @property
    def changes_numbers(self) -> bool:
        """Whether the KV cache may hold numbers of another kind than the recorded one."""
        return not self.values.keys().isdisjoint({"model.dtype", "kv.quant_bits"})

    @property
    def quirks_off(self) -> frozenset[str]:
        """Names of the quirks that are turned off."""
        return frozenset(key.partition(".")[2] for key in self.values if SETTINGS[key].field == "quirk")

    @property
    def leaves_damage_out(self) -> bool:
        """Whether a quirk is turned off that had damaged the cache: then recorded contents must stay out."""
        return any(KINDS[name].damages_data for name in self.quirks_off)

    @property
    def dtype(self) -> str | None:
        value = self.values.get("model.dtype")
        return None if value is None else str(value)

    def config(self, config: EngineConfig) -> EngineConfig:
        names = set(EngineConfig.__dataclass_fields__)
        changed = {SETTINGS[key].field: value for key, value in self.values.items() if SETTINGS[key].field in names}
        if "on_kv_exhausted" in changed:
            changed["on_kv_exhausted"] = OnExhausted(changed["on_kv_exhausted"])
        if "prefix_cache" in changed:
            changed["prefix_cache"] = changed["prefix_cache"] == "true"
        return replace(config, **changed)

    def sampling(self, sampling: SamplingParams, vocab_size: int) -> SamplingParams:
        """Raises `UsageError` when a changed value is out of its range."""
        names = set(SamplingParams.__dataclass_fields__)
        changed = {SETTINGS[key].field: value for key, value in self.values.items() if SETTINGS[key].field in names}
        if not changed:
            return sampling
        result = replace(sampling, **changed)
        if problem := result.problem(vocab_size):
            raise UsageError(f"--set sampling.{problem[0]}: {problem[1]}")
        return result

    def flags(self, flags: InternalFlags) -> InternalFlags:
        """Raises `UsageError` when a changed value is out of its range."""
        threshold = self.values.get("sampling.early_exit")
        if threshold is None:
            return flags
        if not 0.0 <= threshold <= 1.0:
            raise UsageError(f"--set sampling.early_exit: must be between 0 and 1, got {threshold}")
        return replace(flags, early_exit=threshold or None)


def parse_assignments(assignments: tuple[str, ...]) -> dict[str, str]:
    """``KEY=VALUE`` strings as a dict. Raises `UsageError` for one without ``=`` or a key given twice."""
    values: dict[str, str] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals:
            raise UsageError(f"--set {assignment}: no '=' in it", remedy=AS_IN)
        if not key:
            raise UsageError(f"--set {assignment}: no key before the '='", remedy=AS_IN)
        if key in values:
            raise UsageError(f"--set {key} is given twice")
        values[key] = value
    return values


def checked(values: Mapping[str, Any]) -> Overrides:
    """Overrides from raw values (strings from a command line, JSON scalars from a client).

    Raises:
        UsageError: unknown key (with the nearest names), or a value of the wrong type or range.
    """
    return Overrides({key: _value(_setting(key), value) for key, value in values.items()})


def _setting(key: str) -> Setting:
    if key in SETTINGS:
        return SETTINGS[key]
    near = difflib.get_close_matches(key[:80], SETTINGS, n=3, cutoff=0.4)
    raise UsageError(
        f"--set {key:.80}: there is no such setting" if key else "--set: '' is no setting's name",
        remedy=f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(SETTINGS)}",
    )


def _value(setting: Setting, raw: Any) -> Any:
    wanted = " or ".join(setting.choices) if setting.choices else {int: "an integer", float: "a number"}[setting.kind]
    if setting.choices == BOOLEANS and isinstance(raw, bool):
        raw = str(raw).lower()
    shown = f"{raw!r:.80}"
    text = "" if isinstance(raw, bool) or not isinstance(raw, str | int | float) else str(raw)
    if setting.kind is float and text.lower().lstrip("+-") in ("nan", "inf", "infinity"):
        raise UsageError(f"--set {setting.key}: wants a finite number, got {shown}")
    pattern = {int: _INTEGER, float: _NUMBER}.get(setting.kind)
    if (setting.choices and text not in setting.choices) or (pattern and not pattern.fullmatch(text)):
        raise UsageError(f"--set {setting.key}: wants {wanted}, got {shown}")
    value = setting.kind(text)
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"--set {setting.key}: wants a finite number, got {shown}")
    if setting.minimum is not None and value < setting.minimum:
        raise UsageError(f"--set {setting.key}: must be at least {setting.minimum:g}, got {shown}")
    return value

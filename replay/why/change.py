"""One change of a run, as an option of ``pplx-replay run``, and what its effect would say."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

KV, SCHEDULE = "kv-contents", "schedule"
"""The subjects of the recorded contents of the KV cache, and of what the recorded scheduler chose."""

INCLUDED: Mapping[str, Mapping[str, str]] = {KV: {"kv": "recompute"}, SCHEDULE: {"schedule": "live"}}
"""The options of those two."""

LIVE_SETTINGS = frozenset({"scheduler.max_num_seqs", "scheduler.max_num_batched_tokens"})
"""A recorded schedule has made these choices already: they take one that is derived again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """``settings`` are those of ``--set``, ``options`` other options by name.

    ``subject`` is what of the run it changes: two changes of one subject are variants, and are never tried together.
    ``needs`` names that thing as the failure needs it if the change makes it vanish, ``points_to`` is a sentence on
    what that says. ``includes`` are subjects of `INCLUDED` that have to be changed along with it.
    ``alone_only``: another variant stands for it in pairs.
    """

    subject: str
    needs: str
    points_to: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    includes: frozenset[str] = frozenset()
    alone_only: bool = False

    @property
    def name(self) -> str:
        """Without dashes, and without what it includes: "scheduler.prefix_cache=false", "kernels=stock"."""
        return " ".join(f"{key}={value}" for key, value in {**self.settings, **self.options}.items())

    @property
    def all_options(self) -> dict[str, str]:
        """Its options with those of what it includes."""
        return {**self.options, **{k: v for subject in sorted(self.includes) for k, v in INCLUDED[subject].items()}}

    @property
    def arguments(self) -> str:
        """As arguments of ``pplx-replay run``."""
        words = [f"--set {shlex.quote(f'{key}={value}')}" for key, value in self.settings.items()]
        return " ".join([*words, *(f"--{key} {value}" for key, value in self.all_options.items())])

    def applied(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """``job`` with this change."""
        return {**job, **self.all_options, "set": {**job.get("set", {}), **self.settings}}


@dataclass(frozen=True, slots=True)
class Left:
    """A change that is not tried, and why. ``applies``: it would be, were this another place or target."""

    what: str
    why: str
    applies: bool = False


def named(changes: Sequence[Change]) -> str:
    return " and ".join(change.name for change in changes)


def model_key(changes: Sequence[Change]) -> tuple[str, str]:
    """What of the changes wants another model in memory: those that want the same are best run one after another."""
    dtype = next((c.settings["model.dtype"] for c in changes if "model.dtype" in c.settings), "")
    return dtype, next((c.options["kernels"] for c in changes if "kernels" in c.options), "")

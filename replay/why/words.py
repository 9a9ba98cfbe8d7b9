"""What a table of trials says, in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from replay.why.change import Change, Left
from replay.why.effect import Effect, Trial


def in_words(
    singles: Sequence[Trial], pairs: Sequence[Trial], left: Sequence[Left], *, pairs_wanted: bool
) -> list[str]:
    """Which change makes the failure vanish and what that points to, what only changes it, and what could not be said.

    ``pairs_wanted``: pairs were to be tried, where there are any.
    """
    return [
        *_answer(singles, pairs, pairs_wanted=pairs_wanted),
        *_others(singles),
        *_unsaid(singles, pairs, left),
    ]


def _answer(singles: Sequence[Trial], pairs: Sequence[Trial], *, pairs_wanted: bool) -> list[str]:
    gone = _by_subject(trial for trial in singles if trial.effect is Effect.VANISHES)
    joint = [trial for trial in pairs if trial.effect is Effect.VANISHES]
    if gone:
        lines = [_needs(gone), *_pointers(trial.changes[0] for trial in gone)]
        if joint:
            lines.append(f"Beside those, it is gone with two changes together: {_pairs(joint)}.")
        return lines
    if joint:
        return [_joint(joint, singles), *_pointers(one for trial in joint[:1] for one in trial.changes)]
    if not singles:
        return ["There is nothing in this dump that could be changed."]
    tried = f"None of the {_counted(len(singles), 'single change')}"
    tried += f" and {_counted(len(pairs), 'pair')}" if pairs else ""
    lines = [f"{tried} gives a run without a failure."]
    if not pairs and not pairs_wanted:
        lines.append("Pairs were not tried.")
    if not any(trial.effect is Effect.ANOTHER for trial in singles):
        lines.append("It needs none of these settings: look at what the request asks, and at the code that it meets.")
    return lines


def _needs(gone: Sequence[Trial]) -> str:
    needs = [trial.changes[0].needs for trial in gone]
    if len(gone) == 1:
        return f"The failure needs {needs[0]}: with {gone[0].name} it is gone."
    either = "either of the two" if len(gone) == 2 else "any of them"
    names = _listed([trial.name for trial in gone], "or")
    return f"The failure needs {_listed(needs, 'and')} together: {either} changed ({names}), and it is gone."


def _joint(joint: Sequence[Trial], singles: Sequence[Trial]) -> str:
    first = joint[0]
    text = f"No single change gives a run without a failure. {first.name} together do: "
    alone = {trial.name: trial for trial in singles}
    one, other = first.changes
    if alone[one.name].effect is not Effect.ANOTHER:
        one, other = other, one
    if alone[one.name].effect is Effect.ANOTHER:
        text += (
            f"with {one.name} alone another failure shows ({alone[one.name].seen}), and that one needs {other.needs}."
        )
    else:
        text += f"either {first.changes[0].needs} or {first.changes[1].needs} is enough for it, and both have to go."
    return text + (f" So do {_pairs(joint[1:])}." if len(joint) > 1 else "")


def _pairs(joint: Sequence[Trial]) -> str:
    return "; ".join(trial.name for trial in joint)


def _pointers(changes: Iterable[Change]) -> list[str]:
    return [text for text in dict.fromkeys(change.points_to for change in changes) if text]


def _others(singles: Sequence[Trial]) -> list[str]:
    another: dict[str, list[str]] = {}
    for trial in singles:
        if trial.effect is Effect.ANOTHER:
            another.setdefault(trial.seen, []).append(trial.name)
    lines = [f"With {_listed(names, 'or')} it gives way to another failure: {seen}." for seen, names in another.items()]
    if parted := [trial.name for trial in singles if trial.effect is Effect.DIVERGES]:
        lines.append(f"With {_listed(parted, 'or')} the run parts from the record before the failure.")
    if stays := [trial.name for trial in singles if trial.effect is Effect.STAYS and trial.answers_differ]:
        lines.append(f"Answers differ with {_listed(stays, 'or')}, and the failure stays: it does not hang on them.")
    return lines


def _unsaid(singles: Sequence[Trial], pairs: Sequence[Trial], left: Sequence[Left]) -> list[str]:
    lines = []
    if unsaid := [trial.name for trial in singles if trial.effect is Effect.CANNOT_TELL]:
        lines.append(f"Nothing can be told of {_listed(unsaid, 'and')}: see the notes.")
    if unsaid := [trial.name for trial in pairs if trial.effect is Effect.CANNOT_TELL]:
        lines.append(f"Nor of {_counted(len(unsaid), 'pair')}, such as {unsaid[0]}.")
    by_reason: dict[str, list[str]] = {}
    for one in left:
        if one.applies:
            by_reason.setdefault(one.why, []).append(one.what)
    lines += [f"Not tried: {_listed(names, 'and')}, since {why}." for why, names in by_reason.items()]
    return lines


def _by_subject(trials: Iterable[Trial]) -> list[Trial]:
    """One of each subject: variants of a change say the same."""
    return list({trial.changes[0].subject: trial for trial in reversed(list(trials))}.values())[::-1]


def _listed(names: Sequence[str], word: str) -> str:
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} {word} {names[-1]}"


def _counted(number: int, name: str) -> str:
    return f"{number} {name}{'s' * (number != 1)}"

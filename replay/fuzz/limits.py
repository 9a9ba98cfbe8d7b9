"""How long a load may go on before it is said not to come to an end."""

from __future__ import annotations

from replay.scenario.scenario import Scenario, answer_tokens


def most_steps(scenario: Scenario) -> int:
    """More than any load of this size takes that goes on: every token alone, each request begun again for every other
    one, and all that is waited for."""
    tokens = sum(len(visit.prompt) + answer_tokens(visit, scenario.config) for visit in scenario.visits)
    events = [visit.arrives + (visit.leaves or 0) + (visit.leaves_again or 0) for visit in scenario.visits]
    return 100 + max(events) + tokens * (1 + len(scenario.visits))

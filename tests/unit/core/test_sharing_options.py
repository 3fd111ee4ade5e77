"""Options of sharing: preemptible, priority and requeue, checked against what the team may."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dlspawner.core.config import SchedulingConfig, Team
from dlspawner.core.launch.options import BUILT_IN, InvalidOptions, offered_options, select_options
from dlspawner.core.template import OptionChoice
from tests.unit.core.builders import CLUSTER, NOTEBOOK, chosen
from tests.unit.core.factories import MINUTE

SHARED = replace(
    NOTEBOOK,
    options=tuple(BUILT_IN[name] for name in ("gpus", "gpu_type", "team", "preemptible", "requeue", "priority")),
)
FREE, TESTERS = Team("free"), Team("testers", priorities=("test",))
STINGY, MODEST = Team("stingy", borrow_limit=0), Team("modest", title="Modest people", borrow_limit=2000)

CHOSEN: dict[str, tuple[tuple[Team, ...], dict[str, Any], tuple[str, bool, bool]]] = {
    "by default a job is guaranteed and of the lowest level": ((FREE,), {"gpus": 1}, ("test", False, False)),
    "as many as may be borrowed": ((MODEST,), {"gpus": 2, "preemptible": True}, ("test", True, False)),
    "without a GPU there is nothing to leave": ((FREE,), {"gpus": 0, "preemptible": True}, ("test", False, False)),
    "a level": ((FREE,), {"priority": "prod"}, ("prod", False, False)),
    "requeue": ((FREE,), {"gpus": 1, "requeue": "on"}, ("test", False, True)),
}

REFUSED: dict[str, tuple[tuple[Team, ...], dict[str, Any], str]] = {
    "a level that no team of the person's may use": (
        (TESTERS,),
        {"priority": "prod"},
        "Priority must be one of test; you chose “prod”.",
    ),
    "a level of another of the person's teams": (
        (TESTERS, FREE),
        {"priority": "prod", "team": "testers"},
        "Priority must be one that team testers may use: test; you asked for “prod”.",
    ),
    "a team that borrows nothing": (
        (STINGY,),
        {"gpus": 1, "preemptible": True},
        "Team stingy may borrow no GPUs for preemptible jobs; you asked for 1.",
    ),
    "more than the team may borrow": (
        (MODEST,),
        {"gpus": 3, "preemptible": True},
        "Team Modest people may borrow at most 2 GPUs for preemptible jobs; you asked for 3.",
    ),
}


@pytest.mark.parametrize(("teams", "given", "expected"), CHOSEN.values(), ids=CHOSEN)
def test_sharing_options_are_selected(
    teams: tuple[Team, ...], given: dict[str, Any], expected: tuple[str, bool, bool]
) -> None:
    choices = chosen(SHARED, of=teams, **given)
    assert (choices.priority, choices.preemptible, choices.requeue) == expected


@pytest.mark.parametrize(("teams", "given", "sentence"), REFUSED.values(), ids=REFUSED)
def test_wrong_sharing_option_is_refused_with_a_sentence(
    teams: tuple[Team, ...], given: dict[str, Any], sentence: str
) -> None:
    assert select_options(SHARED, CLUSTER, given, teams) == InvalidOptions((sentence,))


def test_a_template_s_own_level_gives_way_where_the_team_may_not_use_it() -> None:
    options = (BUILT_IN["team"], replace(BUILT_IN["priority"], default="prod"))
    assert chosen(replace(NOTEBOOK, options=options), of=(TESTERS, FREE), team="testers").priority == "test"


def test_a_template_narrows_the_levels() -> None:
    options = (replace(BUILT_IN["priority"], choices=(OptionChoice("test", "Trying out"),)),)
    (option,) = offered_options(replace(NOTEBOOK, options=options), CLUSTER, (FREE,))
    assert option.choices == (OptionChoice("test", "Trying out"),)


def test_a_template_that_does_not_offer_it_refuses_it() -> None:
    rejected = select_options(NOTEBOOK, CLUSTER, {"preemptible": True}, (FREE,))
    assert isinstance(rejected, InvalidOptions)
    assert rejected.sentences[0].startswith("“Notebook” has no option “preemptible”")


@pytest.mark.parametrize(("minutes", "how"), [(3, "with 3 minutes of notice"), (0, "without notice")])
def test_help_of_preemptible_has_the_notice_of_the_cluster(minutes: int, how: str) -> None:
    cluster = replace(CLUSTER, scheduling=SchedulingConfig(notice=minutes * MINUTE))
    found = {option.name: option for option in offered_options(SHARED, cluster, (FREE,))}
    assert found["preemptible"].help == f"Uses idle GPUs outside your quota; can be stopped {how}."

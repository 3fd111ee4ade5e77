"""GPU-hours through a real Hub: who reads whose, as JSON and as CSV, and what is wrong with a question."""

from __future__ import annotations

import asyncio
import csv
import html
import io
import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
import requests

from dlspawner.manager.db.store import Database
from dlspawner.manager.model.gpu_hours import GpuHoursQuery, GroupBy, cell, gpu_hours_query, write_csv
from tests.component.manager.history import Past, write_past
from tests.component.manager.quota import running
from tests.component.manager.test_idle_hub import EXTRA, IdleHub

NOW = datetime(2030, 3, 31, 23, 30, tzinfo=UTC)
FORMULA = "=cmd|'/c calc'!A1"
TEAMS = """
teams:
  default: {title: Everybody, quota: {gpu: 8}}
  vision: {title: Vision, admins: [vera], quota: {gpu: 0}}
  language: {title: Language, quota: {gpu: 0}}
"""


@pytest.mark.parametrize(
    ("since", "until", "expected"),
    [
        (None, None, ("2030-03-02", "2030-03-31")),
        ("2030-03-01", "2030-03-01", ("2030-03-01", "2030-03-01")),
        (None, "2029-12-31", ("2029-12-02", "2029-12-31")),
        (None, "0001-01-01", ("0001-01-01", "0001-01-01")),
        ("2030-04-01", None, "after until"),
        ("2000-01-01", None, "At most 1100 days"),
    ],
)
def test_what_can_be_asked(since: str | None, until: str | None, expected: tuple[str, str] | str) -> None:
    days = [date.fromisoformat(day) if day else None for day in (since, until)]
    found = gpu_hours_query(GroupBy.TEAM, *days, NOW)
    if isinstance(found, GpuHoursQuery):
        assert (found.since.isoformat(), found.until.isoformat()) == expected
        assert len(found.days) == (found.until - found.since).days + 1
    else:
        assert isinstance(expected, str)
        assert expected in found


@pytest.mark.parametrize("begin", ["=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠"])
def test_no_name_is_a_formula_in_a_spreadsheet(begin: str) -> None:
    assert cell(f"{begin}1+1") == f"'{begin}1+1"
    assert cell(f"a{begin}1") == f"a{begin}1"
    assert cell("") == ""


def test_whatever_a_name_is_it_stays_one_cell() -> None:
    rows: list[dict[str, object]] = [{"user": 'a,"b"\n=c', "held": 1.5, "used": None}, {"user": FORMULA, "held": 0.0}]
    read = list(csv.reader(io.StringIO(write_csv(["user", "held", "used"], rows), newline="")))
    assert read == [["user", "held", "used"], ['a,"b"\n=c', "1.5000", ""], [f"'{FORMULA}", "0.0000", ""]]


def test_a_spreadsheet_that_splits_at_semicolons_finds_no_formula_either() -> None:
    table = write_csv(["user", "held"], [{"user": "x;=1+1", "held": 1.0}, {"user": "x\t=1+1", "held": 1.0}])
    for delimiter in ";\t":
        cells = [one for line in csv.reader(io.StringIO(table, newline=""), delimiter=delimiter) for one in line]
        assert not [one for one in cells if one.startswith("=")]


# Through the Hub


class HistoryHub(IdleHub):
    """One with a past of yesterday: alice and bob of vision, carol of language, and a name that is a formula."""

    def prepare(self) -> None:
        super().prepare()
        (self.config / "teams.yaml").write_text(TEAMS)
        noon = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0) - timedelta(days=1)
        self.yesterday = noon.date().isoformat()
        past = [
            Past("Q0 T1 R1 E3", gpus=2, noon=noon),
            Past("T0 R0 E2", user="bob", noon=noon),
            Past("T0 R0 X1 E2", user="bob", server="s", reason="idle", noon=noon - timedelta(days=1)),
            Past("T0 R0 E1", user="carol", team="language", gpu_type="big", noon=noon),
            Past("T0 R0 E1", user=FORMULA, team="language", noon=noon),
        ]
        asyncio.run(self._write(past))

    async def _write(self, past: list[Past]) -> None:
        store = Database.open(self.db_url)
        await write_past(store, *past)
        await store.close()


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HistoryHub]:
    state = tmp_path_factory.mktemp("history")
    made = HistoryHub(state, extra=EXTRA, db_url=f"sqlite:///{state / 'manager.sqlite'}")
    with running(made) as started:
        started.add_users(["alice", "bob", "carol", "vera"])
        answer = started.api("POST", "/users/admin", {"admin": True})
        assert answer.status_code in {201, 409}, answer.text
        yield started  # type: ignore[misc]  # what was given


def hours(hub: HistoryHub, user: str, query: str) -> Any:
    answer = hub.manager(hub.token(user), "GET", f"history/gpu-hours?{query}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def sums(told: Any) -> dict[str, tuple[float, float]]:
    return {one[told["by"]]: (round(one["requested"], 6), round(one["allocated"], 6)) for one in told["totals"]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("who", "seen"),
    [
        ("alice", {"alice": (6, 4)}),
        ("vera", {"alice": (6, 4), "bob": (4, 4)}),
        ("admin", {"alice": (6, 4), "bob": (4, 4), "carol": (1, 1), FORMULA: (1, 1)}),
    ],
)
def test_people_read_their_own_team_admins_their_team_s_and_administrators_all(
    hub: HistoryHub, who: str, seen: dict[str, tuple[float, float]]
) -> None:
    assert sums(hours(hub, who, "by=user")) == seen


@pytest.mark.slow
def test_days_come_in_their_order_and_with_every_amount(hub: HistoryHub) -> None:
    told = hours(hub, "bob", f"by=team&until={hub.yesterday}")
    day = next(one for one in told["items"] if one["day"] == hub.yesterday)
    assert set(day) == {"day", "team", "requested", "allocated", "measured", "used", "reclaimed"}
    assert day["used"] is None
    assert told["items"] == sorted(told["items"], key=lambda one: one["day"])
    assert [round(one["reclaimed"], 6) for one in told["items"]] == [10, 14], "from two in the afternoon, for a day"
    assert hours(hub, "bob", "by=team&since=2020-01-01&until=2020-01-31")["items"] == []


@pytest.mark.slow
def test_as_csv_it_is_the_same_and_no_name_is_a_formula(hub: HistoryHub) -> None:
    answer = hub.manager(hub.token("admin"), "GET", f"history/gpu-hours.csv?by=user&since={hub.yesterday}")
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Type"] == "text/csv; charset=utf-8"
    assert answer.headers["Content-Disposition"].startswith('attachment; filename="gpu-hours-user-')
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    rows = {row["user"]: row for row in csv.DictReader(io.StringIO(answer.text, newline=""))}
    assert set(rows) >= {"alice", "bob", "carol", f"'{FORMULA}"}
    assert (rows["alice"]["requested"], rows["alice"]["allocated"], rows["alice"]["used"]) == ("6.0000", "4.0000", "")
    by_type = hub.manager(hub.token("admin"), "GET", "history/gpu-hours.csv?by=gpu_type").text
    assert by_type.splitlines()[0].endswith("total,free,unschedulable,fragmented")


@pytest.mark.slow
def test_a_browser_follows_the_page_s_link_to_the_table(hub: HistoryHub) -> None:
    browser = requests.Session()
    form = browser.get(f"{hub.url}/hub/login", timeout=60).text
    token = re.search(r'name="_xsrf"\s+value="([^"]+)"', form)
    assert token is not None
    body = {"username": "alice", "password": hub.password, "_xsrf": token[1]}
    browser.post(f"{hub.url}/hub/login", data=body, timeout=60)
    page = browser.get(f"{hub.url}/services/jobs/history?by=user", timeout=60)
    assert page.status_code == 200, page.text
    link = re.search(r'href="([^"]+gpu-hours[.]csv[^"]*)">CSV', page.text)
    assert link is not None
    address = hub.url + html.unescape(link[1])
    table = browser.get(address, headers={"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Site": "same-origin"}, timeout=60)
    assert table.status_code == 200, table.text
    assert table.text.startswith("day,user,requested,allocated,measured,used,reclaimed")


@pytest.mark.slow
def test_what_is_wrong_with_a_question_is_said_and_nobody_else_reads_anything(hub: HistoryHub) -> None:
    token = hub.token("alice")
    wrong = hub.manager(token, "GET", "history/gpu-hours?since=soon")
    assert (wrong.status_code, wrong.json()["detail"]) == (
        422,
        "The parameter 'since': must be a day such as 2026-11-22.",
    )
    url = f"{hub.manager_url()}/services/jobs/api/history/gpu-hours"
    assert requests.get(url, timeout=30).status_code == 401
    assert requests.get(f"{url}.csv", timeout=30).status_code == 401
    narrow = hub.api("POST", "/users/alice/tokens", {"scopes": ["access:services!service=jobs"]}).json()["token"]
    assert hub.manager(narrow, "GET", "history/gpu-hours").status_code == 403

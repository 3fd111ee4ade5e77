"""What another site could have a browser send, with the cookies of somebody who is logged in, to every address."""

from __future__ import annotations

import asyncio
import itertools

import requests

from tests.component.manager.addresses import PREFIX, addresses
from tests.component.manager.manager_harness import wants
from tests.component.manager.portals import Portal, proxied
from tests.component.manager.test_hostile import path
from tests.component.manager.test_ssh_keys_page import Browser

# What browsers say of a page of another site, beside its cookies.
ELSEWHERE = (
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://["},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},  # a person's own server, at a name of its own
)
CHANGES = [one for one in addresses() if one.method in {"POST", "PUT", "DELETE"}]


async def test_nothing_is_changed_for_a_browser_without_its_pages_value(portal: Portal, person: str) -> None:
    """What another site could send with somebody's cookies is refused everywhere."""
    job = await portal.runs(wants(person, server="train"))
    answers: dict[str, int] = {}

    def send() -> None:
        browser = Browser(portal.real_hub, person)
        assert browser.session.get(f"{portal.real_hub.public}{PREFIX}", timeout=30).status_code == 200
        for address in CHANGES:
            url = f"{portal.real_hub.public}{PREFIX}{path(address, job.job, person)}"
            for data in ({}, {"_xsrf": "2|00000000|00000000000000000000000000000000|0"}):
                answer = browser.session.request(
                    address.method, url, data=data, headers={"Sec-Fetch-Mode": "cors"}, timeout=30
                )
                answers[str(address)] = answer.status_code
                assert answer.status_code in {401, 403}, (str(address), answer.text)
        (value,) = {one.value or "" for one in browser.session.cookies if one.name == "_xsrf" and PREFIX in one.path}
        for address, said in itertools.product(CHANGES, ELSEWHERE):
            url = f"{portal.real_hub.public}{PREFIX}{path(address, job.job, person)}"
            answer = browser.session.request(address.method, url, data={"_xsrf": value}, headers=said, timeout=30)
            assert answer.status_code in {401, 403}, (str(address), said, answer.text)
        kept = requests.post(
            f"{portal.real_hub.public}{PREFIX}jobs/{job.job}/stop",
            data={"_xsrf": value},
            headers={"Origin": portal.real_hub.public},
            cookies=browser.session.cookies,
            timeout=30,
            allow_redirects=False,
        )
        assert kept.status_code in {200, 303}, "with its value it is done"
        browser.session.close()

    async with proxied(portal):
        await asyncio.to_thread(send)
    assert len(answers) == len(CHANGES)

"""TensorBoard from the link on the home page, on what a notebook wrote, behind the Hub's login."""

from __future__ import annotations

import pytest
import requests
from playwright.sync_api import Page

from tests.e2e.browsing import WITH_SERVERS_PYTHON, log_in, run_cell, start_from_form
from tests.e2e.people import Person, Stack, wait_for

WRITE = (
    "import os, time\n"
    "from tensorboard.compat.proto.event_pb2 import Event\n"
    "from tensorboard.compat.proto.summary_pb2 import Summary\n"
    "from tensorboard.summary.writer.event_file_writer import EventFileWriter\n"
    "writer = EventFileWriter(os.path.expanduser('~/runs/first'))\n"
    "loss = lambda step: Summary(value=[Summary.Value(tag='loss', simple_value=1 / (step + 1))])\n"
    "for step in range(20): writer.add_event(Event(wall_time=time.time(), step=step, summary=loss(step)))\n"
    "writer.close(); print('written')"
)


@pytest.fixture
def scalars_url(stack: Stack) -> str:
    return f"{stack.url}/user/tess/train-tb/data/plugin/scalars/scalars?tag=loss&run=first"


def test_the_link_opens_what_the_notebook_wrote_and_only_for_its_owner(
    page: Page, stack: Stack, bob: Person, scalars_url: str
) -> None:
    log_in(page, stack, "tess")
    start_from_form(page, stack, "train", "Notebook", gpus=0)
    page.wait_for_url("**/user/tess/train/lab**", timeout=180_000)
    run_cell(page, WITH_SERVERS_PYTHON.format(WRITE), "stdout='written")

    page.goto(f"{stack.url}/services/jobs/")
    page.locator("section[data-server=train]").get_by_role("button", name="TensorBoard").click()
    page.wait_for_url("**/user/tess/train-tb/**", timeout=180_000)
    page.get_by_text("loss").first.wait_for(timeout=180_000)
    wait_for(lambda: len(page.request.get(scalars_url).json()) == 20, "TensorBoard shows the whole run")

    page.goto(f"{stack.url}/services/jobs/")
    page.locator("section[data-server=train]").get_by_role("button", name="TensorBoard").click()
    page.wait_for_url("**/user/tess/train-tb/**")

    tess_pod = stack.kubectl("get", "pods", "-l", "dlspawner.dev/server=train-tb", "-o", "yaml")
    assert "nvidia.com/gpu" not in tess_pod

    anonymous = requests.get(scalars_url, allow_redirects=False, timeout=60)
    assert anonymous.status_code in {302, 403}
    assert "step" not in anonymous.text
    others = bob.http.get(scalars_url, timeout=60)
    assert others.status_code == 403

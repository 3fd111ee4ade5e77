"""The screenshots of the README's tour: `make tour` drives a fresh product and writes tests/e2e/tour/*.png."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from playwright.sync_api import Page, expect, sync_playwright

from tests.e2e.browsing import WITH_SERVERS_PYTHON, choose, log_in, run_cell
from tests.e2e.people import Stack, wait_for
from tests.e2e.stack import running
from tests.harness.chromium import LAUNCH

FOLDER = Path(__file__).with_name("tour")
TRAIN = (
    "import math, os\n"
    "print('GPUs:', os.environ['NVIDIA_VISIBLE_DEVICES'])\n"
    "for epoch in range(5):\n"
    "    print(f'epoch {epoch}: loss {math.exp(-0.4 * epoch):.3f}')"
)
WRITE = (
    "import math, os, tensorboardX\n"
    "for run, rate in (('adam', 0.08), ('sgd', 0.04)):\n"
    "    with tensorboardX.SummaryWriter(os.path.expanduser(f'~/runs/{run}')) as writer:\n"
    "        for step in range(100):\n"
    "            writer.add_scalar('loss', math.exp(-rate * step) + 0.02 * math.sin(step), step)\n"
    "print('written')"
)


def shoot(page: Page, name: str) -> None:
    page.screenshot(path=FOLDER / f"{name}.png")


def tour(page: Page, stack: Stack) -> None:
    """A researcher's first hour, one picture a step."""
    log_in(page, stack, "alice")
    choose(page, stack, "train", "Notebook", gpus=2)
    expect(page.locator("#job-summary")).to_contain_text("2 GPUs")
    page.locator(".job-panel:not([hidden]) [data-option=gpu_type]:checked + label").scroll_into_view_if_needed()
    page.get_by_label("Name", exact=True).evaluate("(one) => one.scrollIntoView()")
    shoot(page, "form")
    page.get_by_role("button", name="Start", exact=True).click()
    page.get_by_text(re.compile("gpu-")).first.wait_for()
    shoot(page, "progress")
    page.wait_for_url("**/user/alice/train/lab**", timeout=60_000)
    run_cell(page, TRAIN, "epoch 4")
    shoot(page, "lab")
    run_cell(page, WITH_SERVERS_PYTHON.format(WRITE), "stdout='written")

    page.goto(f"{stack.url}/services/jobs/")
    page.locator("section[data-server=train]").get_by_role("button", name="TensorBoard").click()
    page.wait_for_url("**/user/alice/train-tb/**", timeout=60_000)
    page.get_by_text("loss").first.wait_for(timeout=60_000)
    page.wait_for_timeout(3000)  # TensorBoard draws its charts piece by piece and says nothing when it is done
    shoot(page, "tensorboard")

    page.goto(f"{stack.url}/services/jobs/")
    expect(page.locator("section[data-state=running]")).to_have_count(2)
    shoot(page, "portal")

    with tempfile.TemporaryDirectory() as folder:
        person = stack.person("alice")
        client = person.ssh(Path(folder))
        wait_for(
            lambda: client.run("train", "ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id_ed25519").returncode == 0, "ssh"
        )
    page.goto(f"{stack.url}/services/jobs/keys")
    shoot(page, "keys")


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        running(Path(folder) / "state") as stack,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(**LAUNCH)
        tour(browser.new_context(viewport={"width": 1000, "height": 760}).new_page(), stack)
        browser.close()


if __name__ == "__main__":
    main()

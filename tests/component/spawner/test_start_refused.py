"""StartRefused in the Hub's pages, API and log."""

from __future__ import annotations

import logging

import pytest
from tornado import web

from dlspawner.spawner.kube import errors
from dlspawner.spawner.kube.errors import QuietRefusals, StartRefused
from tests.harness.spawner_builders import make_spawner


def test_pages_and_api_show_the_sentences() -> None:
    refused = StartRefused("GPUs: 99 > 8.", "No <team>.", reason="options")

    assert isinstance(refused, web.HTTPError)
    assert refused.status_code == 400
    assert refused.jupyterhub_message == refused.message == refused.get_message() == "GPUs: 99 > 8. No <team>."
    assert refused.jupyterhub_html_message == "<ul><li>GPUs: 99 &gt; 8.</li><li>No &lt;team&gt;.</li></ul>"


def test_a_per_cent_sign_survives_tornados_formatting() -> None:
    refused = StartRefused("100% used", reason="quota")

    assert f"%d: {refused.log_message}" % 400 == "400: 100% used"
    assert list(refused.args) == []


def test_the_log_has_one_line_and_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("test-refusals")
    QuietRefusals.install(log)
    QuietRefusals.install(log)
    try:
        raise StartRefused("GPUs must be at most 8.", reason="options")
    except StartRefused:
        log.exception("Failed to spawn %s", "alice")

    [record] = caplog.records
    assert record.getMessage() == "Failed to spawn alice: refused (options): GPUs must be at most 8."
    assert record.exc_info is None
    assert record.levelno == logging.INFO
    assert len(log.filters) == 1


def test_lines_of_the_hub_about_a_refusal_are_informational(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("test-refusals")
    log.setLevel(logging.INFO)
    QuietRefusals.install(log)
    refused = StartRefused("Team a uses 8 of its 8 GPUs.", reason="team-quota")
    log.error(f"Not starting alice's server x: {refused}")
    log.error("Previous spawn for %s failed: %s", "alice:x", refused)
    log.exception(f"Error starting server: {refused}")  # as JupyterHub 5.5 does
    log.error("Not starting alice's server x: [Errno 111] Connection refused (manager)")
    log.exception("Error starting server: a bug")

    assert [record.levelno for record in caplog.records] == [logging.INFO] * 3 + [logging.ERROR] * 2
    assert caplog.records[2].exc_info is None


@pytest.mark.parametrize("name", ["asyncio", "tornado.application"])
def test_a_refusal_of_a_task_is_not_logged_again_and_other_exceptions_are(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    QuietRefusals.install(logging.getLogger("test-refusals"))
    refused = StartRefused("No.", reason="options")
    logging.getLogger(name).error("Task exception was never retrieved", exc_info=refused)
    logging.getLogger(name).error("Task exception was never retrieved", exc_info=ValueError("a bug"))

    assert [record.exc_info[1].args for record in caplog.records if record.exc_info] == [("a bug",)]


async def test_a_hub_that_counts_refusals_starts_nothing_and_does_not_count_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(errors, "COUNTS_REFUSALS", True)
    spawner = make_spawner(monkeypatch, config={"consecutive_failure_limit": 5})
    with pytest.raises(StartRefused, match="consecutive_failure_limit is 5 and must be 0 with JupyterHub 5") as refused:
        await spawner.start()

    assert refused.value.status_code == 403
    assert spawner.consecutive_failure_limit == 0


def test_a_hub_that_does_not_count_them_keeps_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "COUNTS_REFUSALS", False)
    assert make_spawner(monkeypatch, config={"consecutive_failure_limit": 5}).consecutive_failure_limit == 5


def test_a_failed_start_links_its_log_on_pages_only() -> None:
    refused = StartRefused("Its server failed.", reason="job-failed")
    refused.link_log("/services/jobs/jobs/j-1/log?a&b")
    assert refused.jupyterhub_html_message == (
        'Its server failed. <a data-log href="/services/jobs/jobs/j-1/log?a&amp;b">Log</a>'
    )
    assert str(refused.jupyterhub_message) == "Its server failed."

"""hub_config/grafana: names of metrics in dashboards and alerts are exported, and each alert fires when it has to."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import jupyterhub.metrics  # noqa: F401  (registers what the Hub exports)
import prometheus_client
import pytest
import yaml

from ssh_gateway.metrics import GatewayMetrics
from tests.component.manager.manager_harness import Leader
from tests.component.manager.metrics import program

FOLDER = Path(__file__).parents[3] / "hub_config" / "grafana"
RULES = yaml.safe_load((FOLDER / "rules.yaml").read_text())["spec"]
ALERTS = {rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"]}
OF_OTHERS = {"certmanager_certificate_expiration_timestamp_seconds", "probe_ssl_earliest_cert_expiry"}
NAME = re.compile(r"\b(?:dlspawner|jupyterhub|process|certmanager|probe)_\w+")

# The series that differs from QUIET, its samples each minute, and when the alert fires.
FIRING = {
    "DlspawnerNoLeader": ('dlspawner_leader{instance="a"}', "0x90", "5m"),
    "DlspawnerQueueStuck": ('dlspawner_jobs{state="queued"}', "3x90", "80m"),
    "DlspawnerStartsFailing": ('dlspawner_job_ends_total{reason="start-failed"}', "0+1x90", "40m"),
    "DlspawnerEvidenceStale": ('dlspawner_evidence_timestamp_seconds{source="gpus"}', "0x90", "20m"),
    "DlspawnerGatewayAway": ("up", "1x90", "10m"),
    "DlspawnerCertificateExpires": (
        'certmanager_certificate_expiration_timestamp_seconds{namespace="dlspawner", name="hub"}',
        "864000x90",
        "70m",
    ),
}
QUIET = {
    'dlspawner_leader{instance="a"}': "1x90",
    'dlspawner_jobs{state="queued"}': "3x90",
    "dlspawner_gpus_free": "4x90",
    "dlspawner_gpus_unusable": "1x90",
    "dlspawner_wait_seconds_count": "0+1x90",
    'dlspawner_job_ends_total{reason="start-failed"}': "0x90",
    'dlspawner_job_ends_total{reason="finished"}': "0+9x90",
    'dlspawner_evidence_timestamp_seconds{source="gpus"}': "0+60x90",
    "dlspawner_gateway_sessions": "0x90",
    'certmanager_certificate_expiration_timestamp_seconds{namespace="dlspawner", name="hub"}': "8640000x90",
}


async def test_metrics_of_dashboards_and_alerts_are_exported(leader: Leader) -> None:
    named = set(NAME.findall(" ".join(rule["expr"] for rule in ALERTS.values())))
    for file in FOLDER.glob("*.json"):
        named |= set(
            NAME.findall(
                " ".join(t["expr"] for panel in json.loads(file.read_text())["panels"] for t in panel["targets"])
            )
        )
    exported = OF_OTHERS | set()
    for registry in (leader.metrics.registry, GatewayMetrics().registry, prometheus_client.REGISTRY):
        for family in registry.collect():
            exported |= {f"{family.name}{end}" for end in ("", "_total", "_bucket", "_sum", "_count")}
    assert named - exported == set()
    assert leader.metrics.registry.get_sample_value("dlspawner_evidence_timestamp_seconds", {"source": "hub"})


@pytest.mark.parametrize("alert", [*ALERTS, "none"])
def test_alerts_fire(alert: str, tmp_path: Path) -> None:
    series, at = dict(QUIET), "80m"
    if alert != "none":
        name, values, at = FIRING[alert]
        series[name] = values
    if alert == "DlspawnerQueueStuck":
        series["dlspawner_wait_seconds_count"] = "7x90"
    if alert == "DlspawnerGatewayAway":
        del series["dlspawner_gateway_sessions"]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(RULES))
    tests = {
        "rule_files": ["rules.yaml"],
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": [
                    {
                        "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                        "eval_time": at,
                        "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1}] if alert != "none" else [],
                    }
                ],
            }
        ],
    }
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(tests))
    command = [program("promtool"), "test", "rules", str(tmp_path / "tests.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_section_in_the_runbook() -> None:
    titles = re.findall(r"^## (\w+)$", (FOLDER.parent / "RUNBOOK.md").read_text(), re.MULTILINE)
    assert titles == list(ALERTS)
    for name, rule in ALERTS.items():
        assert rule["annotations"]["runbook_url"] == f"RUNBOOK.md#{name.lower()}"

"""A small cluster, a template and the facts of a launch, for tests that change one thing of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dlspawner.core.model import Amount, Cluster, GpuType, Team, TeamMount, Toleration
from dlspawner.core.options import BUILT_IN, Choices, choose
from dlspawner.core.rendering import Facts
from dlspawner.core.template import Choice, Endpoint, Expose, Kind, Option, Protocol, Template

GIB = 1024**3

A100 = GpuType(
    name="a100",
    title="NVIDIA A100",
    resource="nvidia.com/gpu",
    per_gpu=Amount(4000, 16 * GIB),
    max_per_job=8,
    node_selector=(("nvidia.com/gpu.product", "A100"),),
    tolerations=(Toleration("nvidia.com/gpu", "Exists"),),
)
MI300 = GpuType(name="mi300", title="AMD MI300", resource="amd.com/gpu", per_gpu=Amount(8000, 32 * GIB), max_per_job=4)
CLUSTER = Cluster((A100, MI300), Amount(500, GIB), Amount(4000, 8 * GIB))

VISION = Team("vision", mounts=(TeamMount("vision-data", "/data/vision"),))
LANGUAGE = Team("language", templates=("notebook",))

SSH = Endpoint("ssh", 2222, Protocol.SSH, Expose.NODEPORT)

NOTEBOOK = Template(
    name="notebook",
    title="Notebook",
    options=(
        replace(BUILT_IN["gpus"], default=1),
        BUILT_IN["gpu_type"],
        BUILT_IN["cpu"],
        BUILT_IN["memory"],
        BUILT_IN["team"],
        replace(BUILT_IN["log_dir"], default="runs"),
        Option("size", Kind.CHOICE, "Size", choices=(Choice("s", "Small"), Choice("l", "Large")), default="s"),
        Option("note", Kind.STRING, "Note", multiline=True),
        Option("code", Kind.STRING, "Code", pattern="[a-z]{3}"),
        Option("rate", Kind.NUMBER, "Learning rate", minimum=0, maximum=1),
        Option("fast", Kind.BOOLEAN, "Fast", default=False),
    ),
    command=("jupyterhub-singleuser",),
    endpoints=(SSH,),
)

FACTS = Facts(
    user="alice",
    server="train",
    unix_name="alice",
    job="j-abcdefghij23",
    pod_name="jupyter-alice--train",
    home_claim="claim-alice",
    team_mounts=VISION.mounts,
    files_secret="jupyter-alice--train-ssh",
    files=(("start", "start"), ("passwd", "passwd"), ("index.html", "page/index.html")),
)


def chosen(template: Template = NOTEBOOK, **given: Any) -> Choices:
    """The choices for options that are known to be right."""
    choices = choose(template, CLUSTER, given)
    assert isinstance(choices, Choices), choices
    return choices

"""A small cluster, a template and the facts of a launch, for tests that change one thing of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dlspawner.core.config import ClusterConfig, CpuMemory, GpuType, Team, TeamMount, Toleration
from dlspawner.core.launch.options import BUILT_IN, SelectedOptions, select_options
from dlspawner.core.launch.rendering import RenderContext
from dlspawner.core.template import (
    Endpoint,
    EndpointProtocol,
    EndpointService,
    Option,
    OptionChoice,
    OptionKind,
    Template,
)

GIB = 1024**3

A100 = GpuType(
    name="a100",
    title="NVIDIA A100",
    resource="nvidia.com/gpu",
    per_gpu=CpuMemory(4000, 16 * GIB),
    max_per_job=8,
    node_selector=(("nvidia.com/gpu.product", "A100"),),
    tolerations=(Toleration("nvidia.com/gpu", "Exists"),),
)
MI300 = GpuType(
    name="mi300", title="AMD MI300", resource="amd.com/gpu", per_gpu=CpuMemory(8000, 32 * GIB), max_per_job=4
)
CLUSTER = ClusterConfig((A100, MI300), CpuMemory(500, GIB), CpuMemory(4000, 8 * GIB))

VISION = Team("vision", mounts=(TeamMount("vision-data", "/data/vision"),))
LANGUAGE = Team("language", templates=("notebook",))

SSH = Endpoint("ssh", 2222, EndpointProtocol.SSH, EndpointService.NODEPORT)

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
        Option(
            "size",
            OptionKind.CHOICE,
            "Size",
            choices=(OptionChoice("s", "Small"), OptionChoice("l", "Large")),
            default="s",
        ),
        Option("note", OptionKind.STRING, "Note", multiline=True),
        Option("code", OptionKind.STRING, "Code", pattern="[a-z]{3}"),
        Option("rate", OptionKind.NUMBER, "Learning rate", minimum=0, maximum=1),
        Option("fast", OptionKind.BOOLEAN, "Fast", default=False),
    ),
    command=("jupyterhub-singleuser",),
    endpoints=(SSH,),
)

FACTS = RenderContext(
    user="alice",
    server="train",
    unix_name="alice",
    job="j-abcdefghij23",
    pod_name="jupyter-alice--train",
    login_proxy="import sys",
    home_claim="claim-alice",
    team_mounts=VISION.mounts,
    files_secret="jupyter-alice--train-ssh",
    files=(("start", "start"), ("passwd", "passwd"), ("index.html", "page/index.html")),
)


def chosen(
    template: Template = NOTEBOOK, *, of: Sequence[Team] = (), cluster: ClusterConfig = CLUSTER, **given: Any
) -> SelectedOptions:
    """The choices of a person of these teams, for options that are known to be right."""
    choices = select_options(template, cluster, given, of)
    assert isinstance(choices, SelectedOptions), choices
    return choices

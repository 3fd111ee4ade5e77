"""Checks the Hub's configuration for mistakes that would prevent every start.

`hub_config/jupyterhub_config.py` calls the checks when the Hub starts. JupyterHub itself calls no code of a spawner
then, so a Hub with another configuration file refuses each start instead, with the same sentences.

A problem names the option and never shows its value: the environment of jobs may contain secrets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from jupyterhub.spawner import Spawner
from kubespawner import KubeSpawner
from traitlets.config import Config
from traitlets.config.loader import DeferredConfig, LazyConfigValue

from dlspawner.settings import reload

NOTHING_STARTS = "This Hub starts nothing until an administrator has changed its configuration."

# In the texts of these options KubeSpawner, of the last two JupyterHub, replaces {placeholders}.
EXPANDED = (
    *("user_namespace_template", "pod_name_template", "dns_name_template", "secret_name_template", "pvc_name_template"),
    *("working_dir", "environment", "extra_labels", "extra_annotations", "volumes", "volume_mounts", "init_containers"),
    *("service_account", "extra_pod_config", "extra_containers", "pod_connect_ip", "storage_extra_labels"),
    *("storage_extra_annotations", "storage_selector", "user_namespace_labels", "user_namespace_annotations"),
    *("notebook_dir", "default_url"),
)
_OF_JOBS = ("templates_dir", "cluster_file", "teams_file", "manager_url", "manager_token", "profile_list")
_LIMITS = (
    "all limits out of teams.yaml and cluster.yaml (quota, borrow_limit, user_caps, jobs_per_user, jobs_per_team, "
    "max_per_job of extended_resources)"
)
FAULTS = (AttributeError, LookupError, TypeError, ValueError)  # of str.format


def configured(spawner: type[Spawner], config: Config, name: str) -> Any:
    """Returns the configured value of a trait; profiles and hooks may change it for single servers."""
    trait = spawner.class_traits()[name]
    sections = [config[section] for section in spawner.section_names() if section in config]
    given = next((section[name] for section in reversed(sections) if name in section), trait.default())
    if isinstance(given, DeferredConfig):
        return given.get_value(trait)
    return given.get_value(trait.default()) if isinstance(given, LazyConfigValue) else given


def of_hub(spawner: type[Spawner], config: Config) -> Any:
    """Returns the configured values that are checked, in place of a spawner."""
    names = (*EXPANDED, *_OF_JOBS, "enable_user_namespaces")
    return SimpleNamespace(
        **{name: configured(spawner, config, name) for name in names},
        name="",
        user=SimpleNamespace(name="user", id=1),
        slug_scheme="safe",
        _namespace_default=lambda: "default",
        template_namespace=lambda: {"username": "", "base_url": ""},
    )


def problems(spawner: Any) -> list[str]:
    """Returns the options with braces that cannot be expanded."""
    return [
        f"KubeSpawner.{path} has a brace that begins no placeholder, such as {{username}}: "
        'write {{ and }} for braces that stay, as in {{"name": 1}} or ${{HOME}}'
        for name in EXPANDED
        for path in _wrong(getattr(spawner, name), name, _expander(spawner, name))
    ]


def job_problems(spawner: Any) -> list[str]:
    """Returns the options that would have no effect with templates, and limits without a Manager to enforce them."""
    found = []
    if spawner.profile_list:
        found.append("templates take the place of KubeSpawner.profile_list: take it out, or DLSpawner.templates_dir")
    now = reload.current_config(spawner.templates_dir, spawner.cluster_file, spawner.teams_file).now()
    if not now.teams.has_limits(now.cluster):
        return found
    if not (spawner.manager_url and spawner.manager_token):
        found.append(
            "only a Manager counts what jobs hold: set DLSpawner.manager_url and DLSpawner.manager_token, "
            f"or take {_LIMITS}"
        )
    elif spawner.enable_user_namespaces:
        found.append(
            "KubeSpawner.enable_user_namespaces gives everybody a namespace, and the Manager counts jobs in one "
            f"only: switch it off, or take {_LIMITS}"
        )
    return found


def _expander(spawner: Any, name: str) -> Callable[[str], str]:
    if name == "dns_name_template":
        return _dns_name
    if name in {"notebook_dir", "default_url"}:
        return lambda text: str(Spawner.format_string(spawner, text))
    return lambda text: str(KubeSpawner._expand_user_properties(spawner, text))


def _dns_name(template: str) -> str:
    found = template.format(namespace="", name="")
    if "{" in found or "}" in found:
        raise ValueError(found)
    return found


def expandable(dns_name_template: str) -> str:
    """Returns the template; if it cannot be expanded, one that expands to its text."""
    broken = [*_wrong(dns_name_template, "", _dns_name)]
    return dns_name_template.replace("{", "{{").replace("}", "}}") if broken else dns_name_template


def _wrong(value: object, path: str, expand: Callable[[str], str]) -> Iterator[str]:
    """Yields the paths of the texts in this value that cannot be expanded."""
    if isinstance(value, str):
        try:
            expand(value)
        except FAULTS:
            yield path
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from _wrong(one, f"{path}[{key!r}]", expand)
    elif isinstance(value, list):
        for index, one in enumerate(value):
            yield from _wrong(one, f"{path}[{index}]", expand)

"""The configuration of DLSpawner: what exists, how jobs are reached, which accounts they run with."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from traitlets import Bool, Dict, Enum, Integer, TraitError, Unicode, validate
from traitlets.config import Configurable

from dlspawner.core import endpoints, units
from dlspawner.core.unix_account import AuthStateKeys


class JobTraits(Configurable):
    """The configuration of DLSpawner, beside KubeSpawner's own."""

    templates_dir = Unicode(
        "",
        config=True,
        help="""
        Directory with jobs/*.yaml, what people may launch, and hub/*.html, the pages that show it.

        Empty, the default, means that there are no job templates: DLSpawner then behaves exactly like KubeSpawner.
        """,
    )
    cluster_file = Unicode(
        "",
        config=True,
        help="""
        The file cluster.yaml: GPU types, what a job without GPUs gets, and storage. Required with templates_dir; there
        is no default because no cluster is like another. It is read again whenever it changes, all
        but storage; with mistakes in it the last good version of all these files stays, and the log says what is wrong.
        """,
    )
    teams_file = Unicode(
        "",
        config=True,
        help="""
        The file teams.yaml: teams, their members' limits, templates and data. Required with templates_dir, and read
        again whenever it changes, like cluster_file. From the first limits on the Manager is asked about every job, and
        without a Manager no job starts.
        """,
    )
    ssh_ca_public_key_file = Unicode(
        "",
        config=True,
        help="""
        The SSH gateway's user CA, its public half (user_ca.pub), which the jobs' sshd trust. Empty, the default: jobs
        are launched without SSH, because nobody could log in.
        """,
    )
    ssh_address = Unicode(
        "",
        config=True,
        help="""
        host:port of the SSH gateway as people type it, for the commands on the pages. The port may be left out when it
        is 22. Empty, the default: the pages show no SSH commands.
        """,
    )
    ssh_image = Unicode(
        "",
        config=True,
        help="""
        The image `ssh` (see hub_config/images), which an init container brings into jobs that run an image of the
        person's own, so that it needs no sshd. Empty, the default: such images must have an sshd themselves.
        """,
    )
    manager_url = Unicode(
        "",
        config=True,
        help="""
        URL of the Manager's service as jobs and the Hub reach it, with its path, such as
        http://manager:8082/services/jobs. Jobs tell it which public keys lie in their home directory, so that its page
        can offer to import them; the Hub asks it for people's uids if it has a manager_token. Empty, the default:
        nothing is told or asked, and the pages have no link to it.
        """,
    )

    http_service_type = Enum(
        ["pod", "nodeport"],
        "pod",
        config=True,
        help="""
        Where the Hub and its proxy reach jobs: "pod", the default, is the pod's own address, for a Hub inside the
        cluster's network; "nodeport" makes a NodePort Service per job and uses its node's address, for a Hub outside.
        A job then takes two NodePorts (one more than for SSH), of which a cluster has 2,768 by default. Jobs have to
        reach the Hub as well: hub_connect_url must be an address that pods reach. Requests travel unencrypted between
        proxy and node, as they do between proxy and pod. Not together with internal_ssl or services_enabled.
        """,
    )

    manager_token = Unicode(
        "",
        config=True,
        help="""
        The Manager's service token, as in JupyterHub.services. Requests to the Manager carry a token derived from it,
        never itself. With it and manager_url, people whose authenticator tells no uid get one from the Manager, the
        same for ever; account_keys excludes that. When teams.yaml gives any team a quota, the Manager is asked before
        the pod of a job is made, and no answer means no start. Empty, the default: people without a uid run jobs with
        KubeSpawner's uid, gid and fs_gid, nobody counts GPUs, and with limits in the files no job starts.
        """,
    )
    account_keys = Dict(
        value_trait=Unicode(),
        key_trait=Unicode(),
        config=True,
        help="""
        Where auth_state has a person's numbers: a name, or names with dots between them, for uid, gid (without it, the
        uid) and groups (a list of numbers, or an object of names and numbers). What is not named here is "uid", "gid",
        "supplementary_groups"; for ldapauthenticator 2 {"uid": "user_attributes.uidNumber"}.

        With it, be it only {"uid": "uid"}, the authenticator decides for everybody, and who has no uid in auth_state,
        such as a person who has never logged in or a Hub without enable_auth_state, cannot start jobs. Empty, the
        default: who has a uid under the usual name runs with that, everybody else with the Manager's. In both cases a
        uid that is no number or too small, and any number in the range that the Manager gives from, is refused.
        """,
    )
    email_key = Unicode(
        "email",
        config=True,
        help="""
        Where auth_state has a person's e-mail address, as in account_keys: perhaps "oauth_user.email". The Manager is
        told it at each start, and offers it on the page of notifications. Default: "email". Empty: it is told none.
        """,
    )
    least_uid = Integer(
        1000,
        min=1,
        config=True,
        help="""
        The smallest uid that is accepted from the authenticator. 1000, the default, is where distributions begin to
        number people; below are the accounts of systems, which own other things on shared storage.
        """,
    )

    strict_groups = Bool(
        False,
        config=True,
        help="""
        Whether a job has only the unix groups that its pod names (supplementalGroupsPolicy: Strict). False, the
        default: the container runtime adds the groups that the image's own /etc/group gives to the image's name for
        the person's uid, so who may choose an image chooses groups. Switch it on where every node for jobs has
        status.features.supplementalGroupsPolicy, as with Kubernetes 1.33 and containerd 2; other nodes refuse the jobs.
        """,
    )

    ephemeral_storage_limit = Unicode(
        "20Gi",
        config=True,
        help="""
        How much a job may write to its node's disk: outside of its volumes, into emptyDirs (its /dev/shm is memory) and
        logs. A job with more is stopped by its node, and its owner reads why. A template says otherwise for itself by
        the resource ephemeral-storage of its container, in limits, requests or both. Default: 20Gi; empty: no limit.
        """,
    )
    ephemeral_storage_guarantee = Unicode(
        "1Gi",
        config=True,
        help="""
        How much disk of its node a job requests, of ephemeral_storage_limit. When a node runs out of disk, its kubelet
        first stops pods with more than they requested. Default: 1Gi; empty: nothing, where there is no limit either.
        """,
    )

    special_namespace = Unicode(
        "",
        config=True,
        help="""
        The namespace of jobs with special permissions (root, privileged, host network, host paths, devices), a second
        one beside KubeSpawner.namespace: with the label pod-security.kubernetes.io/enforce: privileged, and with the
        Hub's, the Manager's and the gateway's rights (hub_config/kubernetes/components/special). The Manager and the
        gateway need the same name, Manager.special_namespace and Gateway.special_namespace. With it, the final
        manifest of every job, hooks included, may use only the permissions that its template asks for and cluster.yaml
        switches on. Empty, the default: no job has special permissions. Not with enable_user_namespaces.
        """,
    )

    @property
    def ssh_target(self) -> tuple[str, int] | None:
        return endpoints.read_target(self.ssh_address)

    @property
    def ephemeral_storage(self) -> tuple[str, str]:
        """Limit and request of a job, "" for none; no request is larger than the limit."""
        limit, request = self.ephemeral_storage_limit, self.ephemeral_storage_guarantee
        if limit and request:
            request = min(request, limit, key=lambda amount: units.parse_quantity(amount) or 0)
        return limit, request

    @validate("ephemeral_storage_limit", "ephemeral_storage_guarantee")
    def _check_ephemeral_storage(self, proposal: Any) -> Any:
        if proposal.value and units.parse_quantity(proposal.value) is None:
            raise TraitError(f"{proposal.trait.name} must be an amount such as 20Gi, not {proposal.value}.")
        return proposal.value

    @validate("account_keys")
    def _check_account_keys(self, proposal: Any) -> Any:
        known = [field.name for field in fields(AuthStateKeys)]
        unknown = sorted(set(proposal.value) - set(known))
        if unknown:
            raise TraitError(f"account_keys has {', '.join(unknown)}; known are {', '.join(known)}.")
        return proposal.value

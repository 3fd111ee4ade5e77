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
        Directory with jobs/*.yaml, the job templates, and hub/*.html, the pages that show them.

        Empty, the default: there are no job templates, and DLSpawner behaves exactly like KubeSpawner.
        """,
    )
    cluster_file = Unicode(
        "",
        config=True,
        help="""
        The file cluster.yaml: GPU types, resources of jobs without GPUs, and storage. Required with templates_dir. The
        Hub reads changes of the file at once, except those of `storage`. With mistakes in a file the last good version
        of all these files stays in use, and the log names the mistakes.
        """,
    )
    teams_file = Unicode(
        "",
        config=True,
        help="""
        The file teams.yaml: teams, and their members' limits, templates and data. Required with templates_dir, and read
        again like cluster_file. If the files have limits, the Hub asks the Manager about every job, and without a
        Manager no job starts.
        """,
    )
    ssh_ca_public_key_file = Unicode(
        "",
        config=True,
        help="""
        The public key of the SSH gateway's user CA (user_ca.pub), which the jobs' sshd trusts. Empty, the default: jobs
        have no SSH.
        """,
    )
    ssh_address = Unicode(
        "",
        config=True,
        help="""
        host:port of the SSH gateway for the commands on the pages, as users type it. The port may be left out if it is
        22. Empty, the default: the pages show no SSH commands.
        """,
    )
    ssh_image = Unicode(
        "",
        config=True,
        help="""
        The image `ssh` (see hub_config/images). An init container copies sshd from it into jobs with an image of the
        user's own. Empty, the default: such images must have an sshd themselves.
        """,
    )
    manager_url = Unicode(
        "",
        config=True,
        help="""
        URL of the Manager's service for jobs and the Hub, with its path, such as http://manager:8082/services/jobs.
        Jobs report the public keys in their home directory to it, so that its page can offer to import them. With
        manager_token the Hub requests users' uids from it. Empty, the default: the Hub and the jobs make no requests to
        a Manager, and the pages have no link to it.
        """,
    )

    http_service_type = Enum(
        ["pod", "nodeport"],
        "pod",
        config=True,
        help="""
        The address at which the Hub and its proxy reach jobs. "pod", the default: the pod's own address, for a Hub
        inside the cluster's network. "nodeport": a NodePort Service per job and its node's address, for a Hub outside;
        a job then takes two NodePorts (one more than for SSH), of which a cluster has 2,768 by default. Jobs must reach
        the Hub as well: hub_connect_url must be an address that pods reach. Requests are not encrypted between proxy
        and node, as between proxy and pod. Not together with internal_ssl or services_enabled.
        """,
    )

    manager_token = Unicode(
        "",
        config=True,
        help="""
        The Manager's service token, as in JupyterHub.services. Requests to the Manager carry a token derived from it,
        never the token itself. With manager_url, users without a uid from the authenticator get a permanent one from
        the Manager, unless account_keys is set. If the files have limits, the Hub asks the Manager before it makes the
        pod of a job, and without an answer the job does not start. Empty, the default: users without a uid run jobs
        with KubeSpawner's uid, gid and fs_gid, GPUs are not counted, and with limits in the files no job starts.
        """,
    )
    account_keys = Dict(
        value_trait=Unicode(),
        key_trait=Unicode(),
        config=True,
        help="""
        The keys of auth_state that have a user's uid, gid (default: the uid) and groups (a list of numbers, or an
        object of names and numbers): a name, or names with dots between them. Defaults: "uid", "gid",
        "supplementary_groups"; for ldapauthenticator 2 {"uid": "user_attributes.uidNumber"}.

        With any entry, such as {"uid": "uid"}, the authenticator decides for all users: a user without a uid in
        auth_state cannot start jobs, such as a user who has never logged in, or any user of a Hub without
        enable_auth_state. Empty, the default: a user with a uid under the usual name has that uid, other users get one
        from the Manager. In both cases a uid that is no number or below least_uid, and any number in the Manager's
        range, is refused.
        """,
    )
    email_key = Unicode(
        "email",
        config=True,
        help="""
        The key of auth_state that has a user's e-mail address, in the form of account_keys, such as "oauth_user.email".
        The Hub sends the address to the Manager at each start, and the page of notifications offers it. Default:
        "email". Empty: the Hub sends no address.
        """,
    )
    least_uid = Integer(
        1000,
        min=1,
        config=True,
        help="""
        The smallest uid that the Hub accepts from the authenticator. Default: 1000, the first uid of users in most
        distributions. Smaller uids are system accounts, which may own other files on shared storage.
        """,
    )

    strict_groups = Bool(
        False,
        config=True,
        help="""
        Whether a job has only the unix groups that its pod names (supplementalGroupsPolicy: Strict). False, the
        default: the container runtime adds the groups of the image's own /etc/group, so a user who may choose an image
        chooses groups. Set it if every node for jobs has status.features.supplementalGroupsPolicy, as with Kubernetes
        1.33 and containerd 2; other nodes refuse the jobs.
        """,
    )

    ephemeral_storage_limit = Unicode(
        "20Gi",
        config=True,
        help="""
        The size that a job may write to its node's disk: outside its volumes, into emptyDirs (its /dev/shm is memory)
        and logs. The node stops a job above the limit, and the job's owner reads the reason. A template overrides it by
        the resource ephemeral-storage of its container, in limits, requests or both. Default: 20Gi. Empty: no limit.
        """,
    )
    ephemeral_storage_guarantee = Unicode(
        "1Gi",
        config=True,
        help="""
        The disk space of its node that a job requests, at most ephemeral_storage_limit. A node that runs out of disk
        first stops pods above their request. Default: 1Gi. Empty: no request, if there is no limit either.
        """,
    )

    special_namespace = Unicode(
        "",
        config=True,
        help="""
        The namespace of jobs with special permissions (root, privileged, host network, host paths, devices), beside
        KubeSpawner.namespace. It needs the label pod-security.kubernetes.io/enforce: privileged, and the rights of the
        Hub, the Manager and the gateway (hub_config/kubernetes/components/special). Manager.special_namespace and
        Gateway.special_namespace must name it, too. The final manifest of every job, hooks included, may then use only
        the permissions that its template requests and cluster.yaml permits. Empty, the default: no job has special
        permissions. Not with enable_user_namespaces.
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

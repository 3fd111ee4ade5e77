"""Where DLSpawner finds its files, the gateway and the Manager: its configuration that belongs to no single module."""

from __future__ import annotations

from traitlets import Unicode
from traitlets.config import Configurable

from dlspawner.core import endpoints


class JobTraits(Configurable):
    """The part of DLSpawner's configuration that says what there is."""

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
        again whenever it changes, like cluster_file. From the first limits on the Manager is asked about every job.
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

    @property
    def ssh_target(self) -> tuple[str, int] | None:
        """The gateway's host and port as people type them."""
        return endpoints.read_target(self.ssh_address)

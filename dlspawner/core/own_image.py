"""What a pod needs whose work container ``main`` is an image of the person's own, which nobody prepared for us.

* An init container copies the bundle of the image ``ssh`` (sshd, its libraries, a busybox) to an emptyDir, and ``main``
  sees it read-only at ``/dl``. Nothing is taken from the image and nothing is added to it.
* ``main`` holds a lock on a file of another emptyDir as long as its first process lives; the login proxy waits for that
  lock and ends. The kernel gives it up however the process ends, SIGKILL included, and nobody has to ask Kubernetes.

Where no ``ssh`` image is configured the image must have an sshd, as this machine has on the embedded cluster.
"""

from __future__ import annotations

from dlspawner.core.manifest import Manifest

BUNDLE = "/dl"
BUNDLE_VOLUME = "dlspawner-ssh"
LOGIN_SHELL = f"{BUNDLE}/bin/shell"
ALIVE = "/run/dlspawner"
ALIVE_VOLUME = "dlspawner-alive"

_USUAL_SHELL, _BUNDLED_SHELL = ("/bin/sh",), (f"{BUNDLE}/bin/busybox", "sh")
_COPY_TO = "/copy"
_RESOURCES = {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"cpu": "1", "memory": "64Mi"}}


def init_container(image: str) -> Manifest:
    """The container that brings the bundle of the image ``ssh``."""
    return {
        "name": BUNDLE_VOLUME,
        "image": image,
        "args": [_COPY_TO],
        "securityContext": {"readOnlyRootFilesystem": True},
        "resources": {kind: dict(amounts) for kind, amounts in _RESOURCES.items()},
        "volumeMounts": [{"name": BUNDLE_VOLUME, "mountPath": _COPY_TO}],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def shell(bundled: bool) -> tuple[str, ...]:
    """What runs the job's ``start`` in ``main``."""
    return _BUNDLED_SHELL if bundled else _USUAL_SHELL


def volumes(bundled: bool) -> list[Manifest]:
    names = [ALIVE_VOLUME, *([BUNDLE_VOLUME] if bundled else [])]
    return [{"name": name, "emptyDir": {}} for name in names]


def main_mounts(bundled: bool) -> list[Manifest]:
    alive = {"name": ALIVE_VOLUME, "mountPath": ALIVE}
    return [alive, {"name": BUNDLE_VOLUME, "mountPath": BUNDLE, "readOnly": True}] if bundled else [alive]


def proxy_mounts() -> list[Manifest]:
    return [{"name": ALIVE_VOLUME, "mountPath": ALIVE, "readOnly": True}]

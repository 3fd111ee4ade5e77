"""Images in the user's cache, which several runs share."""

from __future__ import annotations

import json
from pathlib import Path

from tests.kubernetes import images
from tests.kubernetes.images import Image


def build(layout: Path, content: bytes) -> Image:
    """As buildah writes it: what had the name before is still listed, without it."""
    made = images.of_layer("localhost/job:1", layout, content, {})
    path = layout / "index.json"
    listed = json.loads(path.read_text())["manifests"] if path.exists() else []
    named = {"digest": made.digest, "annotations": {"org.opencontainers.image.ref.name": "job"}}
    path.write_text(json.dumps({"manifests": [*({"digest": one["digest"]} for one in listed), named]}))
    images.prune_layout(layout)
    return made


def test_a_build_leaves_the_images_of_the_one_before_to_runs_that_import_them(tmp_path: Path) -> None:
    first, second = build(tmp_path, b"first"), build(tmp_path, b"second")
    assert images.read_layout(tmp_path) == {"job": second.digest}
    assert all(first.blob(digest).exists() for digest in first.digests)
    build(tmp_path, b"third")
    assert not first.blob(first.digest).exists(), "they do not pile up"
    assert all(second.blob(digest).exists() for digest in second.digests)

"""Files by every program that copies them: scp with both protocols, sftp, rsync, git, lftp, psftp, sshfs."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.component.gateway.clients.ways import Rig, Way, program
from tests.component.gateway.peers import Done

MIB = 2**20

Tree = dict[str, tuple[int, bytes | str]]


def plant(root: Path) -> Tree:
    """A tree with properties that copying tends to lose: empty and large files, modes, links, unusual names."""
    (root / "deep" / "er").mkdir(parents=True)
    (root / "empty").touch()
    (root / "a name with spaces").write_bytes(os.urandom(10_000))
    (root / "übergröße ☃").write_bytes(b"\0\r\n\xff" * 1000)
    (root / "deep" / "large").write_bytes(os.urandom(3 * MIB + 17))
    (root / "deep" / "er" / "script").write_text("#!/bin/sh\n")
    (root / "deep" / "er" / "script").chmod(0o755)
    (root / "deep" / "private").write_text("secret")
    (root / "deep" / "private").chmod(0o600)
    return read_tree(root)


def read_tree(root: Path) -> Tree:
    """Names, modes and contents of everything in a folder."""
    found: Tree = {}
    for path in sorted(root.rglob("*")):
        name, mode = str(path.relative_to(root)), path.lstat().st_mode
        found[name] = (mode, str(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else "")
    return found


@pytest.fixture
def planted(rig: Rig) -> tuple[Path, Tree]:
    source = rig.directory / "tree"
    return source, plant(source)


def back(rig: Rig, way: Way) -> Path:
    return rig.directory / f"back-{way.value}"


def mounts() -> bool:
    """True if this kernel permits mounts with FUSE, which no package could install."""
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError:
        return False
    return True


NO_FUSE = pytest.mark.xfail(not mounts(), run=False, reason="no FUSE on this machine: sftp is what is tested")
LFTP = "lftp --norc -c \"set net:max-retries 1; set sftp:connect-program 'OPENSSH -a -x'; open sftp://HOST; {}\""
SSHFS = """unshare --user --map-root-user --mount bash -c '
mkdir -p BACK.mounted
sshfs -f HOST:FOLDER BACK.mounted -o ssh_command="OPENSSH" -o idmap=user &
for n in $(seq 1000); do mountpoint -q BACK.mounted && break; sleep 0.02; done
{}; status=$?; umount BACK.mounted; wait; exit $status'"""
# Two commands of a program: one copies a tree into the job, one copies it back.
COPIES = {
    "scp": ("scp -F CONFIG -rpq LOCAL HOST:FOLDER/copy", "scp -F CONFIG -rpq HOST:FOLDER/copy BACK"),
    "scp -O": ("scp -F CONFIG -Orpq LOCAL HOST:FOLDER/copy", "scp -F CONFIG -Orpq HOST:FOLDER/copy BACK"),
    "rsync": ("rsync -aze 'OPENSSH' LOCAL/ HOST:FOLDER/copy/", "rsync -aze 'OPENSSH' HOST:FOLDER/copy/ BACK/"),
    "lftp": (LFTP.format("mirror -R LOCAL FOLDER/copy"), LFTP.format("mirror FOLDER/copy BACK")),
    "sshfs": (SSHFS.format("cp -a LOCAL BACK.mounted/copy"), SSHFS.format("cp -a BACK.mounted/copy BACK")),
}


def filled(text: str, **places: object) -> str:
    """The text with paths and names in place of the words in capitals."""
    return re.sub("|".join(places), lambda found: str(places[found[0]]), text)


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(one, marks=[NO_FUSE] if one == "sshfs" else []) for one in COPIES])
async def test_tree_is_copied_there_and_back(rig: Rig, planted: tuple[Path, Tree], name: str) -> None:
    source, tree = planted
    env = {"PATH": f"{os.environ['PATH']}:{Path(program(name.split(maxsplit=1)[0])).parent}"}

    async def case(way: Way) -> tuple[list[Done], bool, bool]:
        folder, got = rig.job_folder(way), back(rig, way)
        places = {"CONFIG": rig.config, "OPENSSH": rig.openssh, "LOCAL": source, "BACK": got}
        lines = [filled(line, HOST=way.value, FOLDER=folder, **places) for line in COPIES[name]]
        done = [await rig.run("bash", "-c", line, env=env) for line in lines]
        return done, read_tree(folder / "copy") == tree, read_tree(got) == tree

    assert await rig.each(case) == ([Done(0, b"", "")] * 2, True, True)


SFTP_COMMANDS = """\
mkdir FOLDER/made
cd FOLDER/made
put LOCAL/large
put -p LOCAL/er/script tool
ln -s large link
rename tool renamed
chmod 640 large
get large BACK
-rm no-such-file
rm renamed
pwd
"""
PSFTP_COMMANDS = """\
mkdir FOLDER/made
cd FOLDER/made
put LOCAL/large
mput LOCAL/private LOCAL/er/script
ls no-such-folder
get large BACK
mv script renamed
del private
chmod 600 large
pwd
quit
"""


@dataclass(frozen=True)
class Batch:
    """A client of SFTP, its commands, and what it says and leaves in the job."""

    client: str
    commands: str
    said: str
    left: dict[str, int]


BATCHES = {
    "sftp": Batch("sftp", SFTP_COMMANDS, "Remote working directory: FOLDER/made", {"large": 0o640, "link": 0o777}),
    "psftp": Batch(
        "psftp",
        PSFTP_COMMANDS,
        "Unable to open no-such-folder: no such file or directory",
        {"large": 0o600, "renamed": 0o755},
    ),
}


@pytest.mark.parametrize("batch", [pytest.param(row, id=name) for name, row in BATCHES.items()])
async def test_sftp_batch_makes_renames_and_removes(rig: Rig, planted: tuple[Path, Tree], batch: Batch) -> None:
    source, _ = planted
    await rig.make_ppk()

    async def case(way: Way) -> tuple[int, str, Tree, bytes]:
        folder, fetched, script = (rig.job_folder(way), back(rig, way), rig.directory / f"batch-{way.value}")
        script.write_text(filled(batch.commands, FOLDER=folder, LOCAL=source / "deep", BACK=fetched))
        options = ["-q", "-b", str(script), way.value]
        if batch.client == "psftp":
            options = [*rig.putty(way), "-be", "-b", str(script)]
        done = await rig.run(batch.client, *options)
        said = done.text.replace(str(folder), "FOLDER").replace(str(fetched), "BACK")
        return done.status, said, read_tree(folder), fetched.read_bytes()

    status, said, tree, got = await rig.each(case)
    assert status == 0
    assert batch.said in said
    assert {name: tree[f"made/{name}"][0] & 0o777 for name in batch.left} == batch.left
    assert sorted(tree) == ["made", *(f"made/{name}" for name in batch.left)]
    assert got == (source / "deep" / "large").read_bytes()


@pytest.mark.slow
async def test_git_pushes_and_clones(rig: Rig) -> None:
    data = os.urandom(2 * MIB)

    async def case(way: Way) -> list[int]:
        where = f"ssh://{way.value}{rig.job_folder(way)}/all.git"
        here, other = rig.directory / f"here-{way.value}", rig.directory / f"other-{way.value}"
        here.mkdir()
        (here / "data").write_bytes(data)
        env = {"GIT_SSH_COMMAND": rig.openssh, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
        env |= {f"GIT_{role}_{word}": word for role in ("AUTHOR", "COMMITTER") for word in ("NAME", "EMAIL")}
        statuses = [
            (await rig.run("git", "-C", str(here), *words, env=env)).status
            for words in (
                ("init", "-q", "--bare", "-b", "main", str(rig.job_folder(way) / "all.git")),
                ("init", "-qb", "main"),
                ("add", "."),
                ("commit", "-qm", "first"),
                ("push", "-q", where, "main"),
                ("clone", "-q", where, str(other)),
                ("ls-remote", f"{where}x"),
            )
        ]
        assert (other / "data").read_bytes() == data
        return statuses

    assert await rig.each(case) == [0, 0, 0, 0, 0, 0, 128]

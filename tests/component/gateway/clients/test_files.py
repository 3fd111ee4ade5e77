"""Files by every program that copies them: scp with both protocols, sftp, rsync, git, lftp, psftp, sshfs."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.component.gateway.clients.ways import Rig, Way, quoted
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


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("-O",)], ids=["sftp", "scp protocol"])
async def test_scp_copies_a_tree_in_both_directions(
    rig: Rig, planted: tuple[Path, Tree], flags: tuple[str, ...]
) -> None:
    source, tree = planted

    async def case(way: Way) -> tuple[Done, Done, bool, bool]:
        there = await rig.run("scp", *flags, "-rpq", str(source), f"{way.value}:{rig.job_folder(way)}/copy")
        here = await rig.run("scp", *flags, "-rpq", f"{way.value}:{rig.job_folder(way)}/copy", str(back(rig, way)))
        return there, here, read_tree(rig.job_folder(way) / "copy") == tree, read_tree(back(rig, way)) == tree

    assert await rig.each(case) == (Done(0, b"", ""), Done(0, b"", ""), True, True)


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
        places = {"FOLDER": str(folder), "LOCAL": str(source / "deep"), "BACK": str(fetched)}
        commands = re.sub("|".join(places), lambda found: places[found[0]], batch.commands)
        script.write_text(commands)
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
async def test_rsync_copies_a_tree_and_then_only_changes(rig: Rig, planted: tuple[Path, Tree]) -> None:
    source, _ = planted
    (source / "link").symlink_to("deep/large")
    os.utime(source / "deep", (1e9, 1e9))  # or what is removed there may change nothing: rsync compares whole seconds
    tree = read_tree(source)

    async def case(way: Way) -> tuple[list[int], str, bool, bool]:
        host, folder = way.value, rig.job_folder(way)
        rsync = ("rsync", "-az", "--delete", "-e", rig.openssh)
        (folder / "copy").mkdir()
        (folder / "copy" / "stale").touch()
        done = [
            await rig.run(*rsync, f"{source}/", f"{host}:{folder}/copy/"),
            await rig.run(*rsync, f"{host}:{folder}/copy/", f"{back(rig, way)}/"),
        ]
        (folder / "copy" / "deep" / "private").unlink()
        again = await rig.run(*rsync, "-i", f"{source}/", f"{host}:{folder}/copy/")
        missing = await rig.run(*rsync, f"{host}:no-such-file", str(back(rig, way)))
        statuses = [one.status for one in (*done, again, missing)]
        return statuses, again.text, read_tree(folder / "copy") == tree, read_tree(back(rig, way)) == tree

    statuses, changed, there, here = await rig.each(case)
    assert (statuses, there, here) == ([0, 0, 0, 23], True, True)
    assert [line.split()[1] for line in changed.splitlines()] == ["deep/", "deep/private"]


@pytest.mark.slow
async def test_git_pushes_clones_and_fetches(rig: Rig) -> None:
    data = os.urandom(2 * MIB)

    async def case(way: Way) -> list[tuple[int, bytes]]:
        where = f"ssh://{way.value}{rig.job_folder(way)}/all.git"
        here, other = rig.directory / f"here-{way.value}", rig.directory / f"other-{way.value}"
        here.mkdir()
        (here / "data").write_bytes(data)
        env = {"GIT_SSH_COMMAND": rig.openssh, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
        env |= {f"GIT_{role}_{word}": word for role in ("AUTHOR", "COMMITTER") for word in ("NAME", "EMAIL")}
        env |= {f"GIT_{role}_DATE": "2024-01-01T00:00:00Z" for role in ("AUTHOR", "COMMITTER")}

        async def git(*words: str, folder: Path = here) -> tuple[int, bytes]:
            done = await rig.run("git", "-C", str(folder), *words, env=env)
            return done.status, done.out

        await rig.run("git", "init", "-q", "--bare", "-b", "main", str(rig.job_folder(way) / "all.git"), env=env)
        first = [await git("init", "-qb", "main"), await git("add", "."), await git("commit", "-qm", "first")]
        push, clone = await git("push", "-q", where, "main"), await git("clone", "-q", where, str(other))
        second = [await git("commit", "-qm", "second", "--allow-empty"), await git("push", "-q", where, "main")]
        fetched = [await git("pull", "-q", folder=other), await git("rev-parse", "HEAD", folder=other)]
        refs, missing = await git("ls-remote", where), await git("ls-remote", f"{where}x")
        assert (other / "data").read_bytes() == data
        return [*first, push, clone, *second, *fetched, refs, missing]

    done = await rig.each(case)
    assert [status for status, _ in done] == [0] * 10 + [128]


@pytest.mark.slow
async def test_lftp_mirrors_in_both_directions(rig: Rig, planted: tuple[Path, Tree]) -> None:
    source, tree = planted

    async def case(way: Way) -> tuple[int, str, bool, bool]:
        commands = (
            f"set net:max-retries 1; set sftp:connect-program '{rig.openssh} -a -x'; "
            f"open sftp://{way.value}; cd {rig.job_folder(way)}; "
            f"mirror -R {source} copy; mirror copy {back(rig, way)}; cls -1 copy/deep"
        )
        done = await rig.run("lftp", "--norc", "-c", commands)
        there, here = read_tree(rig.job_folder(way) / "copy"), read_tree(back(rig, way))
        return done.status, done.text, there == tree, here == tree

    assert await rig.each(case) == (0, "copy/deep/er/\ncopy/deep/large\ncopy/deep/private\n", True, True)


def mounts() -> bool:
    """True if this kernel permits mounts with FUSE, which no package could install."""
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.xfail(not mounts(), run=False, reason="no FUSE on this machine: sftp is what is tested")
async def test_sshfs_mounts_the_files_of_the_job(rig: Rig, planted: tuple[Path, Tree]) -> None:
    source, tree = planted

    async def case(way: Way) -> tuple[bool, bool]:
        folder = rig.job_folder(way)
        mounted = rig.directory / f"mounted-{way.value}"
        mounted.mkdir()
        options = ("-o", f"ssh_command={rig.openssh}", "-o", "idmap=user")
        mount = quoted("sshfs", "-f", f"{way.value}:{folder}", str(mounted), *options)
        wait = f"for n in $(seq 1000); do mountpoint -q {mounted} && break; sleep 0.02; done"
        use = f"cp -a {quoted(str(source))} {mounted}/copy && cp -a {mounted}/copy {back(rig, way)}"
        script = f"{mount} & {wait}; {use}; status=$?; umount {mounted}; wait; exit $status"
        done = await rig.run("unshare", "--user", "--map-root-user", "--mount", "bash", "-c", script)
        assert done.status == 0, done.err
        return read_tree(folder / "copy") == tree, read_tree(back(rig, way)) == tree

    assert await rig.each(case) == (True, True)

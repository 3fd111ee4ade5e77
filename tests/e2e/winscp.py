"""Files in the way of WinSCP: ``python winscp.py``, with address and login as JSON on standard input.

The token answers keyboard-interactive's question; 32 requests are under way at a time when it reads, and any number
when it writes; a file is sent as NAME.filepart, given its time and its name when it is whole, and keys are new in the
middle. A process of its own: paramiko is threads.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys

import paramiko

MIB = 2**20
AT_ONCE = 32
MODIFIED = 1_500_000_000


def move(transport: paramiko.Transport, sftp: paramiko.SFTPClient, folder: str) -> list[object]:
    """The result of a file there and back: whether all of it did, its time, and the names in the folder."""
    data, name = os.urandom(8 * MIB), f"{folder}/winscp"
    with sftp.open(f"{name}.filepart", "wb") as file:
        file.set_pipelined(True)
        for at in range(0, len(data), MIB):
            if at == 4 * MIB:
                transport.renegotiate_keys()
            file.write(data[at : at + MIB])
    sftp.utime(f"{name}.filepart", (MODIFIED, MODIFIED))
    sftp.rename(f"{name}.filepart", name)
    back = hashlib.sha256()
    with sftp.open(name, "rb") as file:
        file.prefetch(len(data), max_concurrent_requests=AT_ONCE)
        for at in range(0, len(data), MIB):
            if at == 4 * MIB:
                transport.renegotiate_keys()
            back.update(file.read(MIB))
    names = [name for name in sftp.listdir(folder) if name.startswith("winscp")]
    return [back.digest() == hashlib.sha256(data).digest(), int(sftp.stat(name).st_mtime or 0), names]


def main() -> None:
    where = json.load(sys.stdin)
    transport = paramiko.Transport((where["host"], where["port"]))
    transport.auth_timeout = transport.banner_timeout = 120  # a login starts the job
    transport.start_client(timeout=30)
    left = transport.auth_interactive(where["user"], lambda _title, _words, asked: [where["token"] for _ in asked])
    assert left == [], left
    sftp = paramiko.SFTPClient.from_transport(transport)
    assert sftp is not None
    print(json.dumps({folder: move(transport, sftp, folder) for folder in where["folders"]}))
    transport.close()


if __name__ == "__main__":
    main()

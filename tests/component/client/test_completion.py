"""What bash completes of a command line, by the function that it is given."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import shtab

from dlspawner import client

# As bash itself does when Tab is pressed: it calls what is registered for the command.
TAB = """
set -e
eval "$("$PYTHON" -m dlspawner.cli completion bash)"
read -ra registered < <(complete -p dlspawner)
for ((at = 0; at < ${#registered[@]}; at++)); do [[ ${registered[at]} == -F ]] && called=${registered[at+1]}; done
COMP_WORDS=(dlspawner "$@") COMP_CWORD=$#
$called dlspawner "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def completed(*words: str) -> set[str]:
    """What the last of these words may become."""
    environ = {**os.environ, "LC_ALL": "C.UTF-8", "PYTHON": sys.executable}
    line = ["bash", "--norc", "-c", TAB, "bash", *words]
    done = subprocess.run(line, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("su",), {"submit"}),
        (("approv",), {"approvals", "approve"}),
        (("keep",), {"keep-alive"}),
        (("show", "--"), {"--json", "--help"}),
        (("logs", "train", "--s"), {"--search"}),
        (("events", "train", "--s"), {"--search"}),
        (("ssh-config", "--w"), {"--write"}),
        (("completion", "z"), {"zsh"}),
        (("--v",), {"--version"}),
        (("bootstrap", "--log"), {"--login"}),
        (("list", "nothing"), set()),
        (("list", "--s"), {"--server", "--since", "--state"}),
        (("list", "--li"), {"--limit"}),
        (("list", "--state", "pen"), {"pending-approval"}),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, tuple) else "",
)
def test_bash_completes_commands_their_options_and_what_an_argument_may_be(
    words: tuple[str, ...], found: set[str]
) -> None:
    assert completed(*words) == found


def test_the_readme_has_every_shell() -> None:
    readme = Path(client.__file__).with_name("README.md").read_text(encoding="utf-8")
    row = next(line for line in readme.splitlines() if line.startswith("| `completion "))
    assert re.findall(r"`(?:completion )?(\w+)`", row.split("|")[1]) == list(shtab.SUPPORTED_SHELLS)

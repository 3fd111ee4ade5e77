"""Redaction of secrets in logs, and which log and text is shown."""

from __future__ import annotations

import random
import time

import pytest

from dlspawner.manager.logs.reader import ContainerRun, by_pod, choose
from dlspawner.manager.logs.redaction import Redactor, last_lines, matching, readable

TOKEN = b"0123456789abcdef0123456789abcdef"
KEY = b"-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEA\nAAAAB3NzaC\n-----END OPENSSH PRIVATE KEY-----"


def masked(data: bytes, size: int = 0, masker: Redactor | None = None) -> bytes:
    masker = masker or Redactor([TOKEN])
    size = size or len(data) or 1
    parts = [masker.feed(data[at : at + size]) for at in range(0, len(data), size)]
    return b"".join((*parts, masker.end()))


@pytest.mark.parametrize(
    ("printed", "kept"),
    [
        pytest.param(b"hello\nworld", b"hello\nworld", id="what is no secret is kept byte for byte"),
        pytest.param(b"\xff\x00\x1b[1m\r\n", b"\xff\x00\x1b[1m\r\n", id="also what is no text"),
        pytest.param(b"T=" + TOKEN + b"!\n", b"T=[secret]!\n", id="the job's own token is hidden"),
        pytest.param(TOKEN + TOKEN, b"[secret][secret]", id="as often as it is printed"),
        pytest.param(b"a\n" + KEY + b"\nb\n", b"a\n[secret]\nb\n", id="a private key is hidden"),
        pytest.param(b"GET /x?token=abcdefgh123&y=1 200", b"GET /x?token=[secret]&y=1 200", id="a token in an address"),
        pytest.param(b"Authorization: token abc\n", b"Authorization: token [secret]\n", id="and one in a header"),
        pytest.param(b"?state=ok", b"?state=ok", id="a word is no token"),
    ],
)
@pytest.mark.parametrize("size", [0, 1, 7], ids=["at once", "byte by byte", "in pieces"])
def test_secrets_are_hidden_in_pieces_of_any_size(printed: bytes, kept: bytes, size: int) -> None:
    assert masked(printed, size) == kept


def test_a_secret_anywhere_in_an_endless_line_is_hidden() -> None:
    chance = random.Random(7)
    for _ in range(30):
        filler = b"x" * chance.randrange(300_000)
        shown = masked(filler + TOKEN + filler, chance.randrange(1, 100_000))
        assert TOKEN not in shown
        assert shown == filler + b"[secret]" + filler


BODY = b"MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQDKx0+yZ1nSbV7g\n"
END = b"-----END PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("printed", "kept"),
    [
        pytest.param(BODY * 3 + b"Zm9v\n" + END + b" ok\nb\n", b"[secret] ok\nb\n", id="its middle and its end"),
        pytest.param(b"Zm9v\n" + END + b"\n", b"[secret]\n", id="its last line and its end"),
        pytest.param(END + b"\nb\n", b"[secret]\nb\n", id="its end alone"),
        pytest.param(b"DEK-Info: AES-256\n\n" + BODY + END, b"[secret]", id="the middle of an encrypted one"),
        pytest.param(b"\n".join(b"  " + one for one in (BODY[:-1], END)), b"[secret]", id="indented, as in YAML"),
        pytest.param(BODY * 3, b"[secret]\n", id="its middle, and the end is not there yet"),
        pytest.param(BODY * 3 + b"Zm", b"[secret]", id="not even the end of a line"),
        pytest.param(BODY + b"hello!\n", BODY + b"hello!\n", id="what only looks like one for a while"),
        pytest.param(b"12\n34\n", b"12\n34\n", id="words and numbers"),
        pytest.param(b"f" * 64 + b"\n", b"f" * 64 + b"\n", id="a checksum"),
        pytest.param(b"a b\n" + KEY + b"\n", b"a b\n[secret]\n", id="a whole key later on"),
        pytest.param(KEY + b"\nb\n", b"[secret]\nb\n", id="a whole key at once"),
    ],
)
@pytest.mark.parametrize("size", [0, 1, 7], ids=["at once", "byte by byte", "in pieces"])
def test_a_key_is_hidden_from_its_middle_on(printed: bytes, kept: bytes, size: int) -> None:
    assert masked(printed, size, Redactor([TOKEN], middle=True)) == kept


def test_text_that_only_looks_like_a_key_is_kept() -> None:
    masker = Redactor(middle=True)
    assert masker.feed(BODY) + masker.end(cut=False) == BODY
    begun = masked(b"-----BEGIN PRIVATE KEY-----\n" + b"line\n" * 20_000 + b"the end\n", 4096)
    assert b"the end" in begun, "longer than any key"
    endless = Redactor(middle=True)
    assert sum(len(endless.feed(BODY)) for _ in range(1000)) > 900 * len(BODY), "longer than any key"


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        pytest.param(b"", "", id="nothing"),
        pytest.param(b"one\ntwo", "one\ntwo\n", id="the last line ends as well"),
        pytest.param(b"\x1b[31mred\x1b[0m\n", "red\n", id="colours are left out"),
        pytest.param(b"\x1b]0;title\x07x\n", "x\n", id="so is a terminal's title"),
        pytest.param(b"\x1b[2J\x1b[Hx\n", "x\n", id="nothing clears a screen"),
        pytest.param(b"a\x07\x00\x1bb\n", "a␇␀␛b\n", id="what is left is shown as what it is"),
        pytest.param(b" 1%\r 2%\r\n", " 1%\n 2%\n", id="a progress bar is lines, and hides none"),
        pytest.param(b"\xff\xfe\n", "��\n", id="what is no UTF-8"),
        pytest.param("a\u202eb\u2066\n".encode(), "a\\u202eb\\u2066\n", id="nothing turns a line around"),
        pytest.param("a\u2028b\x85\n".encode(), "a\\u2028b\\x85\n", id="odd line ends are none"),
        pytest.param(b"</script><b>\n", "</script><b>\n", id="markup is text: the page escapes it"),
        pytest.param("日本 🦄\tx\n".encode(), "日本 🦄\tx\n", id="everybody's letters"),
    ],
)
def test_shown_text_is_harmless(printed: bytes, shown: str) -> None:
    assert readable(printed) == shown


@pytest.mark.parametrize(
    "printed",
    [b" " * 20_000 + b"!\n", b"A: b\n" * 6000, b"\x1b]" * 500_000, b"\x1b[" + b"0;" * 500_000, b"\r" * 1_000_000],
)
def test_time_is_linear_in_the_size(printed: bytes) -> None:
    began = time.process_time()
    masked(printed, 4096, Redactor(middle=True))
    matching(readable(printed), "x")
    assert time.process_time() - began < 10


def test_last_lines_and_matching_lines() -> None:
    text = "One\ntwo\n\nthree one\n"
    assert last_lines(text, 1) == "three one\n"
    assert last_lines(text, 2) == "\nthree one\n"
    assert last_lines(text, 0) == ""
    assert last_lines(text, 99) == text
    assert matching(text, "one") == "One\nthree one\n"
    assert matching(text, "nothing") == ""


def test_log_of_a_job_of_several_pods_is_the_first_pods_newest() -> None:
    names = "jupyter-ann----worker-10", "jupyter-ann", "jupyter-ann----worker-2", "jupyter-ann"
    roles = "worker-10", "chief", "worker-2", "chief"
    given = [
        ContainerRun((name, "notebook", run), name, role=role)
        for name, run, role in zip(names, (0, 0, 0, 1), roles, strict=True)
    ]
    runs = by_pod(given)
    found = {pod: choose(runs, "", pod, None, previous=False) for pod in ("", "chief", "worker-2", names[0], "ps-0")}

    assert [run.role for run in runs] == ["chief", "chief", "worker-2", "worker-10"]
    assert {pod: run and run.key for pod, run in found.items()} == {
        "": ("jupyter-ann", "notebook", 1),
        "chief": ("jupyter-ann", "notebook", 1),
        "worker-2": ("jupyter-ann----worker-2", "notebook", 0),
        names[0]: (names[0], "notebook", 0),
        "ps-0": None,
    }

"""Makes the output of containers fit to be kept and shown. PURE.

*Kept* is the output, byte for byte, but for secrets: known ones (the job's own tokens) and text that looks
like one where our own programs might print it (private keys, tokens in addresses and headers). *Shown* is text without
anything that moves a cursor, rings, or turns a line around: any program may write to a log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

MASK = b"[secret]"
LONGEST_SECRET = 4096
_SHORTEST_SECRET = 8
_HELD = 2 * LONGEST_SECRET  # of a line without end, so that no secret is cut in two
_LONGEST_LINE = 64 * 1024  # that is held until its end is known

_KEY_BEGINS = re.compile(rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----")
_KEY_ENDS = re.compile(rb"-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----")
_LONGEST_KEY = 32 * 1024
_LONGEST_MARK = 80
# Lines as they are inside of a key: of base64, of PEM's own headers, empty. Those that fill the width tell most.
_IN_KEY = re.compile(rb"\s{0,40}(?:[A-Za-z0-9+/]{1,200}={0,2}|[A-Z][A-Za-z-]{1,30}: [ -~]{1,200}|)\s{0,40}")
_FULL = re.compile(rb"\s{0,40}(?![0-9A-Fa-f]+\s{0,40}$)[A-Za-z0-9+/]{60,200}={0,2}\s{0,40}")
_LOOKS = (
    re.compile(rb"([?&](?:token|access_token|code|state)=)[^\s&\"'<>]{8,}", re.IGNORECASE),
    re.compile(rb"(authorization[\"']?\s{0,4}[:=]\s{0,4}[\"']?(?:token|bearer|basic)\s{1,4})[^\s\"']+", re.IGNORECASE),
)

# Sequences that colour text or move the cursor say nothing; what is left of others is shown as what it is.
_SEQUENCES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]{0,4096}(?:\x07|\x1b\\)|[()][0-9A-B]|[=>78cDEHM])")
_ENDS = re.compile(r"\r*\n|\r+")
_HARMLESS: dict[int, str] = {
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n"},
    0x7F: "\u2421",
    **{code: f"\\x{code:02x}" for code in range(0x80, 0xA0)},
    # What turns text around or hides in it, and line ends that only some programs know.
    **{
        code: f"\\u{code:04x}"
        for code in (0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A), 0xFEFF)
    },
}


class Redactor:
    """Hides secrets in a stream of bytes, in pieces of any size; its results end with whole lines."""

    def __init__(self, secrets: Iterable[bytes] = (), *, middle: bool = False) -> None:
        """``middle``: what comes may begin in the middle of a private key."""
        known = {part for one in secrets for part in one[:LONGEST_SECRET].split(b"\n") if len(part) >= _SHORTEST_SECRET}
        longest_first = sorted(known, key=lambda one: (-len(one), one))
        self._known = re.compile(b"|".join(map(re.escape, longest_first))) if known else None
        self._held = b""
        self._key_bytes = -1  # of a private key without its end yet; none while negative
        self._key_tail = b""  # of it, in which its end may have begun
        self._opening = _Opening() if middle else None

    @property
    def inside(self) -> bool:
        """True if a private key has begun and its end has not come yet."""
        return self._key_bytes >= 0

    def feed(self, data: bytes) -> bytes:
        """Returns the text so far that may be shown and was not returned before."""
        return self._pass(data if self._opening is None else self._opening.feed(data))

    def end(self, *, cut: bool = True) -> bytes:
        """The rest; ``cut``: what came did begin in the middle, so lines that look like a key's are taken for some."""
        opened = self._pass(self._opening.end(cut=cut)) if self._opening is not None else b""
        rest, self._held = self._hide(self._held), b""
        return opened + rest

    def _pass(self, data: bytes) -> bytes:
        if self._key_bytes < 0:
            data, self._held = self._held + data, b""
        text = self._hide(self._held + self._without_keys(data))
        cut = text.rfind(b"\n") + 1
        if not cut and len(text) > _LONGEST_LINE:
            cut = len(text) - _HELD
        self._held = text[cut:]
        return text[:cut]

    def _hide(self, text: bytes) -> bytes:
        if self._known is not None:
            text = self._known.sub(MASK, text)
        for pattern in _LOOKS:
            text = pattern.sub(rb"\1" + MASK, text)
        return text

    def _without_keys(self, text: bytes) -> bytes:
        """A key begins in what is held, and ends in any later piece."""
        shown = []
        while text:
            if self._key_bytes < 0:
                begin = _KEY_BEGINS.search(text)
                if begin is None:
                    break
                shown += [text[: begin.start()], MASK]
                text, self._key_bytes, self._key_tail = text[begin.end() :], 0, b""
            self._key_bytes += len(text)
            text = self._key_tail + text
            end = _KEY_ENDS.search(text)
            # No key is longer: a job that prints such a beginning does not silence the rest.
            if end is None and self._key_bytes <= _LONGEST_KEY:
                self._key_tail = text[-_LONGEST_MARK:]
                return b"".join(shown)
            text, self._key_bytes = text[end.end() if end else 0 :], -1
        return b"".join((*shown, text))


class _Opening:
    """The first lines of what may begin in the middle of a private key: held until one tells whether it does."""

    def __init__(self) -> None:
        self._lines, self._rest, self._size, self._sure = list[bytes](), b"", 0, False

    def feed(self, data: bytes) -> bytes:
        """Returns the text outside such a key, once that is known."""
        if self._sure:
            return data
        *lines, self._rest = (self._rest + data).split(b"\n")
        for number, line in enumerate(lines, 1):
            self._lines.append(line)
            self._size += len(line) + 1
            end = _KEY_ENDS.search(line)
            if end is not None and not _KEY_BEGINS.search(line):
                self._lines = [MASK + line[end.end() :]]
            if end is not None or self._size > _LONGEST_KEY or not _IN_KEY.fullmatch(line):
                self._lines += lines[number:]
                return self._release()
        return self._release() if len(self._rest) > _LONGEST_KEY else b""

    def end(self, *, cut: bool) -> bytes:
        """Returns the text that is still held; only a mark if it looks like a key."""
        broken = bool(self._rest)  # a last line without its end is judged like the others
        held = self.feed(b"\n" if broken else b"")
        if not self._sure:
            if cut and any(map(_FULL.fullmatch, self._lines)):
                self._lines = [MASK]
            held = self._release()
        return held.removesuffix(b"\n") if broken else held

    def _release(self) -> bytes:
        held = b"\n".join((*self._lines, self._rest))
        self._lines, self._rest, self._sure = [], b"", True
        return held


def readable(data: bytes) -> str:
    """Text that is harmless wherever it is shown; every line ends with a line feed, the last one too."""
    text = _ENDS.sub("\n", _SEQUENCES.sub("", data.decode(errors="replace"))).translate(_HARMLESS)
    return text if not text or text.endswith("\n") else f"{text}\n"


def last_lines(text: str, count: int) -> str:
    """Returns the last lines of a text in which each line ends with a line feed."""
    at = len(text)
    for _ in range(count + 1):
        at = text.rfind("\n", 0, at)
        if at < 0:
            return text
    return text[at + 1 :]


def matching(text: str, wanted: str) -> str:
    """The lines in which these words are, in capitals or not."""
    needle = wanted.casefold()
    return "".join(f"{line}\n" for line in text.split("\n")[:-1] if needle in line.casefold())

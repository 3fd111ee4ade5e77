"""Text of other people's choosing, shown so that nothing hides in it. PURE.

Names, titles and reasons may hold whatever their authors typed. HTML's own characters are the templates' to escape;
here it is about letters that show nothing or turn around what stands beside them, and those that no page can hold.
"""

from __future__ import annotations

import re

# Control characters other than tab and line end; what turns the direction of writing; Unicode's own line ends; what
# has no width; letters that look like nothing at all: Hangul's fillers, the blank of Braille, the joiner of graphemes,
# the two vowels of Khmer that are never written. Those that join letters (U+200C, U+200D) are left: whole languages,
# and smileys, are written with them.
_HIDDEN = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\u2800\u3164\ufeff\uffa0\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f"
)
# What chooses between forms of the letter before it is writing there, and hides behind every other one: emoji and
# mathematics have sixteen of them, ideographs these and 240 more, Mongolian four. Of two only the first can choose.
_SYMBOLS = (
    "\xa9\xae\u203c\u2049\u2122\u2139\u2190-\u23ff\u2460-\u24ff\u25a0-\u27ff\u2900-\u2bff\u3030\u303d\u3297\u3299"
    "\U0001f000-\U0001faff"
)
_IDEOGRAPHS = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
_FORMS = (
    rf"(?<![{_SYMBOLS}{_IDEOGRAPHS}])(?!(?<=[0-9#*])\ufe0f\u20e3)[\ufe00-\ufe0f]",
    rf"(?<![{_IDEOGRAPHS}])[\U000e0100-\U000e01ef]",
    "(?<![\u1820-\u1878\u1880-\u18aa])[\u180b-\u180d\u180f]",
)
_HIDES = re.compile("|".join((f"[{_HIDDEN}]", *_FORMS)))


def escape_hidden(text: str) -> str:
    """The same text, in which every letter that hides is spelled out, such as ``\\u202e``."""
    return text if text.isascii() and text.isprintable() else _HIDES.sub(_spelled, text)


def _spelled(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()

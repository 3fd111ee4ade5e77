"""Text of other people's choosing, shown so that nothing hides in it. PURE.

Names, titles and reasons may hold whatever their authors typed. HTML's own characters are the templates' to escape;
here it is about letters that show nothing or turn around what stands beside them, and those that no page can hold.
"""

from __future__ import annotations

import re

# Control characters other than tab and line end; what turns the direction of writing; Unicode's own line ends; what
# has no width. Those that join letters (U+200C, U+200D) are left: whole languages, and smileys, are written with them.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


def visible(text: str) -> str:
    """The same text, in which every letter that hides is spelled out, such as ``\\u202e``."""
    return text if text.isprintable() else _HIDDEN.sub(_spelled, text)


def _spelled(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()

"""Rules for names, label keys and label values: each says what is wrong in Kubernetes' words, or None. Pure."""

from __future__ import annotations

import re

MAX_ANNOTATIONS = 256 * 1024

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NAME = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"

_LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_DNS1035_RULE = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, "
    "and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is "
    "'[a-z]([-a-z0-9]*[a-z0-9])?')"
)
_NAME_RULE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)


def dns_label(text: str) -> str | None:
    return _too_long(text, 63) or (None if re.fullmatch(_LABEL, text) else _LABEL_RULE)


def dns1035_label(text: str) -> str | None:
    return _too_long(text, 63) or (None if re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", text) else _DNS1035_RULE)


def dns_subdomain(text: str) -> str | None:
    return _too_long(text, 253) or (None if re.fullmatch(rf"{_LABEL}(\.{_LABEL})*", text) else _SUBDOMAIN_RULE)


def qualified_name(text: str) -> str | None:
    """A label or annotation key: a name, optionally behind a DNS prefix and a slash."""
    prefix, slash, name = text.rpartition("/")
    if slash and (not prefix or "/" in prefix or dns_subdomain(prefix)):
        return f"prefix part {_SUBDOMAIN_RULE}" if prefix else "prefix part must be non-empty"
    if not name:
        return "name part must be non-empty"
    return _too_long(name, 63, "name part ") or (None if re.fullmatch(_NAME, name) else _NAME_RULE)


def label_value(text: str) -> str | None:
    return _too_long(text, 63) or (None if re.fullmatch(rf"({_NAME})?", text) else _VALUE_RULE)


def _too_long(text: str, limit: int, what: str = "") -> str | None:
    return (
        f"{what}must be no more than {limit} {'bytes' if limit == 63 else 'characters'}" if len(text) > limit else None
    )

"""Keep secrets and environment variables out of everything that is written: references replace them there."""

import os
import re
from collections.abc import Mapping
from typing import Any

from augment.support.errors import UserError
from augment.support.nested import leaves

# Names of settings that hold secrets, and addresses with a password before the host or a signature in the query.
_SECRET = re.compile(
    r"(?:.*[_-])?(?:tokens?|secrets?|password|passwd|passphrase|credentials?|auth)"
    r"|(?:.*[_-])?(?:api|access|auth|private|secret)[_-]?key|key",
    re.IGNORECASE,
)
_ADDRESS = re.compile(
    r"://(?:[^/@\s]+@|\S*[?&](?:[^=&\s]*[_-])?(?:token|sig|signature|secret|password|key)=\S)", re.IGNORECASE
)
_MASK = "***"


class Reference(str):
    """A text in whose place another one is `written`, such as "${oc.env:TOKEN}"."""

    __slots__ = ("written",)

    written: str

    def __new__(cls, value: str, written: str) -> "Reference":
        """Make a reference from the value and the text to write."""
        made = super().__new__(cls, value)
        made.written = written
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """Become a plain text in another process."""
        return str, (str(self),)


def is_secret(key: str, value: object) -> bool:
    """Return whether a value must not be written: its key looks like a secret, or it is an address with one."""
    if not isinstance(value, str) or "${" in value:
        return False
    return bool(_SECRET.fullmatch(key.rpartition(".")[2]) or _ADDRESS.search(value))


def refuse_secrets(values: Mapping[str, Any]) -> None:
    """Refuse secrets by key path that are no references, as they would be written to files."""
    for key, value in leaves(values):
        if repr(as_written(value, key)) != repr(value):
            raise UserError(
                f"{key}: looks like a secret, which would be written to files. Allowed: {key}='${{oc.env:NAME}}', with "
                "the value in an environment variable."
            )


def masked(token: str) -> str:
    """Return an override in a form that may be shown."""
    key, equals, value = token.partition("=")
    return f"{key}={_MASK}" if equals and is_secret(key.lstrip("+~"), value) else token


def as_written(value: Any, key: str = "") -> Any:
    """Return plain values in a form that may be written."""
    if isinstance(value, Reference):
        return value.written
    if isinstance(value, Mapping):
        return {name: as_written(inner, str(name)) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [as_written(inner, key) for inner in value]
    return _MASK if is_secret(key, value) else value


def resolved(plain: Any, raw: Any) -> Any:
    """Return resolved values, with a `Reference` for each text that is or contains an environment variable.

    `raw` are the values before interpolations were resolved.
    """
    refuse_secrets(raw)
    names = re.findall(r"\$\{\s*oc\.env\s*:\s*([^,}\s]+)", repr(raw))
    return _with_references(plain, raw, {os.environ.get(name.strip("'\""), "") for name in names} - {""})


def _with_references(plain: Any, raw: Any, values: set[str]) -> Any:
    if isinstance(plain, dict):
        inner = raw if isinstance(raw, dict) else dict.fromkeys(plain, _MASK)
        return {name: _with_references(value, inner.get(name), values) for name, value in plain.items()}
    if isinstance(plain, list):
        rows = raw if isinstance(raw, list) and len(raw) == len(plain) else [_MASK] * len(plain)
        return [_with_references(value, row, values) for value, row in zip(plain, rows, strict=True)]
    if isinstance(plain, str) and any(value in plain for value in values):
        # Values copied by an interpolation of another section cannot be traced; texts equal by accident are written.
        return plain if raw == plain else Reference(plain, raw if isinstance(raw, str) else _MASK)
    return plain

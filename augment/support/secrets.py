"""Write references to environment variables instead of their values, which may be secrets."""

import os
import re
from collections.abc import Mapping
from typing import Any

from augment.support.errors import UserError
from augment.support.nested import leaves

# Names of secret settings, and URLs with a password before the host or a signature in the query.
_SECRET_NAME = re.compile(
    r"(?:.*[_-])?(?:tokens?|secrets?|password|passwd|passphrase|credentials?|auth)"
    r"|(?:.*[_-])?(?:api|access|auth|private|secret)[_-]?key|key",
    re.IGNORECASE,
)
_SECRET_URL = re.compile(
    r"://(?:[^/@\s]+@|\S*[?&](?:[^=&\s]*[_-])?(?:token|sig|signature|secret|password|key)=\S)", re.IGNORECASE
)
_MASK = "***"


class Reference(str):
    """A string that is written to files as the text `written`, such as "${oc.env:TOKEN}"."""

    __slots__ = ("written",)

    written: str

    def __new__(cls, value: str, written: str) -> "Reference":
        made = super().__new__(cls, value)
        made.written = written
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a plain string, so that other processes get only the value."""
        return str, (str(self),)


def is_secret(key: str, value: object) -> bool:
    """Return whether a value must not be written, because it looks like a secret or a URL with a secret."""
    if not isinstance(value, str) or "${" in value:
        return False
    return bool(_SECRET_NAME.fullmatch(key.rpartition(".")[2]) or _SECRET_URL.search(value))


def reject_secrets(values: Mapping[str, Any]) -> None:
    """Reject secrets that the user wrote as plain text, because they would be written to files."""
    for key, value in leaves(values):
        if repr(as_written(value, key)) != repr(value):
            raise UserError(
                f"{key} looks like a secret, which would be written to files. Put the value into an environment "
                f"variable, and set {key}='${{oc.env:NAME}}'."
            )


def masked(token: str) -> str:
    """Return an override from the command line, with a mask instead of a secret value."""
    key, equals, value = token.partition("=")
    return f"{key}={_MASK}" if equals and is_secret(key.lstrip("+~"), value) else token


def as_written(value: Any, key: str = "") -> Any:
    """Return plain values for a file. A `Reference` is written unresolved, and any other secret as a mask."""
    if isinstance(value, Reference):
        return value.written
    if isinstance(value, Mapping):
        return {name: as_written(inner, str(name)) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [as_written(inner, key) for inner in value]
    return _MASK if is_secret(key, value) else value


def resolved(plain: Any, raw: Any) -> Any:
    """Return resolved values. A string that contains the value of an environment variable becomes a `Reference`.

    Args:
        plain: the values with interpolations resolved.
        raw: the same values with interpolations unresolved.
    """
    reject_secrets(raw)
    names = re.findall(r"\$\{\s*oc\.env\s*:\s*([^,}\s]+)", repr(raw))
    return _with_references(plain, raw, {os.environ.get(name.strip("'\""), "") for name in names} - {""})


def _with_references(plain: Any, raw: Any, env_values: set[str]) -> Any:
    # Sections and lists that an interpolation copied cannot be traced to a reference, so their strings are masked.
    if isinstance(plain, dict):
        inner = raw if isinstance(raw, dict) else dict.fromkeys(plain, _MASK)
        return {name: _with_references(value, inner.get(name), env_values) for name, value in plain.items()}
    if isinstance(plain, list):
        items = raw if isinstance(raw, list) and len(raw) == len(plain) else [_MASK] * len(plain)
        return [_with_references(value, item, env_values) for value, item in zip(plain, items, strict=True)]
    if isinstance(plain, str) and plain != raw and any(value in plain for value in env_values):
        return Reference(plain, raw if isinstance(raw, str) else _MASK)
    return plain

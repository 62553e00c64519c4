"""Keeps secrets out of everything that is printed or stored: one redactor, and the rules by which a secret is known."""

import base64
import itertools
import json
import os
import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote, unquote

from jaxtrain.errors import ConfigError, Problem

HIDDEN = "<redacted>"
_MIN_LENGTH = 6  # shorter values are not scrubbed: they would eat ordinary words and digits

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SECRET_WORDS = frozenset(
    [
        "secret",
        "secrets",
        "password",
        "passwords",
        "passwd",
        "passphrase",
        "credential",
        "credentials",
        "apikey",
        "authorization",
    ]
)
_SECRET_PAIRS = frozenset(
    (kind, "key")
    for kind in ["api", "access", "secret", "private", "signing", "encryption", "account", "ssh", "auth", "service"]
)
# "token" is a secret except in the words of language modelling: pad_token, tokens_per_token, first_token.
_TOKEN_KINDS = frozenset(
    [
        "pad",
        "mask",
        "eos",
        "bos",
        "sep",
        "unk",
        "cls",
        "separator",
        "special",
        "start",
        "end",
        "stop",
        "per",
        "next",
        "first",
        "last",
        "num",
        "max",
        "min",
    ]
)
# A last word that says the value is about a secret, and is none: token_type, credentials_file, password_length.
_ABOUT = frozenset(
    [
        "dir",
        "path",
        "file",
        "files",
        "folder",
        "type",
        "length",
        "len",
        "count",
        "size",
        "name",
        "index",
        "embedding",
        "embeddings",
        "sock",
        "store",
        "weight",
    ]
)
_SECRET_PARAMETERS = frozenset(["sig", "signature", "key", "auth", "code", "pwd"])

_REFERENCE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*")
_USER_INFO = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^/\s?#'\"]*@")
_PASSWORD = re.compile(r"://[^/\s?#'\":]*:(?P<password>[^/\s?#'\"]*)@")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"]+")
_PARAMETER = re.compile(r"([?&;#])([^=&;#?]+)=([^&;#\s]+)")


def is_secret_name(name: str) -> bool:
    """Does a key, variable or parameter of this name hold a secret?"""
    words = [word.lower() for word in _WORDS.findall(name)]
    if not words or words[-1] in _ABOUT:
        return False
    if any(word in _SECRET_WORDS for word in words) or any(pair in _SECRET_PAIRS for pair in itertools.pairwise(words)):
        return True
    if words[-1] == "pwd":
        return len(words) > 1  # PWD alone is the working directory
    return words[-1] == "token" and not _TOKEN_KINDS.intersection(words)


def is_reference(value: object) -> bool:
    """Does this value name an environment variable that holds the real one, as "env:NAME"?"""
    return isinstance(value, str) and _REFERENCE.fullmatch(value) is not None


def has_secret(text: str) -> bool:
    """Does this value carry a literal secret: a URL with user-info or with a parameter that looks like a credential?"""
    return "://" in text and _scrub_urls(text) != text


class Redactor:
    """Replaces the secrets it was told of, and credentials in URLs, wherever they stand in a text."""

    def __init__(self) -> None:
        self._values: frozenset[str] = frozenset()
        self._pattern: re.Pattern[str] | None = None

    def add(self, *values: str) -> None:
        """Learn secrets, also as JSON, URLs and base64 write them. Values under 6 characters are not learnt."""
        forms = {form for value in values for form in _forms(value) if len(form) >= _MIN_LENGTH} - self._values
        if not forms:
            return
        self._values |= forms
        longest_first = sorted(self._values, key=lambda form: (-len(form), form))
        self._pattern = re.compile("|".join(map(re.escape, longest_first)))

    def __call__(self, text: str) -> str:
        if self._pattern is not None:
            text = self._pattern.sub(HIDDEN, text)
        return _scrub_urls(text) if "://" in text else text


_redactor = Redactor()


def redact(text: str) -> str:
    """`text` without any secret this process knows of."""
    return _redactor(text)


def add(*values: str) -> None:
    """Learn secrets for `redact`."""
    _redactor.add(*values)


def watch_environment(environment: Mapping[str, str]) -> None:
    """Learn the values of all variables whose names say that they are secret, and of URLs with credentials."""
    add(*(value for name, value in environment.items() if is_secret_name(name) or has_secret(value)))


def resolve(reference: str, key: str = "") -> str:
    """The value of the environment variable that "env:NAME" names; `redact` knows it from then on.

    Raises ConfigError, naming the variable and the key that refers to it, when it is missing or empty.
    """
    name = reference.removeprefix("env:")
    value = os.environ.get(name, "")
    if not value:
        state = "is empty" if name in os.environ else "is not set"
        problem = Problem(key, reference, f"the environment variable {name} {state}", f"Set it: export {name}=...")
        raise ConfigError([problem])
    add(value)
    return value


def _forms(value: str) -> Iterable[str]:
    """The spellings under which a secret can reach a text."""
    yield value
    yield value.strip()
    yield json.dumps(value)[1:-1]
    yield repr(value)[1:-1]
    yield quote(value, safe="")
    yield base64.b64encode(value.encode("utf-8", "surrogateescape")).decode()
    if "://" in value:
        yield from _credentials(value)
    if "\n" in value.strip():
        yield from (line.strip() for line in value.splitlines() if len(line.strip()) >= 16)


def _credentials(url: str) -> Iterable[str]:
    """What is secret inside a URL: a message may show it without the rest."""
    found = [match["password"] for match in _PASSWORD.finditer(url)]
    found += [value for _, name, value in _PARAMETER.findall(url) if _is_secret_parameter(name)]
    for value in found:
        yield value
        yield unquote(value)


def _scrub_urls(text: str) -> str:
    return _URL.sub(lambda url: _PARAMETER.sub(_scrub_parameter, url.group()), _USER_INFO.sub(rf"\1{HIDDEN}@", text))


def _scrub_parameter(match: re.Match[str]) -> str:
    separator, name, _ = match.groups()
    return f"{separator}{name}={HIDDEN}" if _is_secret_parameter(name) else match.group()


def _is_secret_parameter(name: str) -> bool:
    plain = unquote(name)
    return is_secret_name(plain) or bool(_SECRET_PARAMETERS.intersection(map(str.lower, _WORDS.findall(plain))))


watch_environment(os.environ)

import base64
import json
import subprocess
import sys
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain import redact
from jaxtrain.errors import ConfigError

SECRET = 'S3cr"et/line é'


@pytest.mark.parametrize(
    "name",
    [
        *[
            "password",
            "db_password",
            "apiKey",
            "API_KEY",
            "wandb_api_key",
            "HF_TOKEN",
            "token",
            "authToken",
            "access_token",
        ],
        *["AWS_SECRET_ACCESS_KEY", "client-secret", "credentials", "X-Amz-Security-Token", "private_key", "db_pwd"],
    ],
)
def test_names_of_secrets_are_known(name):
    assert redact.is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        *[
            "tokens",
            "tokenizer",
            "max_tokens",
            "num_tokens",
            "pad_token",
            "eos_token_id",
            "token_type",
            "tokens_per_sec",
        ],
        *[
            "key",
            "sort_key",
            "query_key",
            "keyboard",
            "seed",
            "PWD",
            "credentials_file",
            "password_length",
            "author",
            "",
            "_",
        ],
        *["loss_per_token", "first_token", "secretary"],
    ],
)
def test_names_of_ordinary_things_are_no_secrets(name):
    assert not redact.is_secret_name(name)


@pytest.mark.parametrize(
    "form",
    [SECRET, json.dumps(SECRET), repr(SECRET), quote(SECRET, safe=""), base64.b64encode(SECRET.encode()).decode()],
)
def test_a_secret_is_hidden_in_every_spelling(form):
    redactor = redact.Redactor()
    assert form in redactor(form)  # before it is told, the text passes
    redactor.add(SECRET)
    text = redactor(f"before {form} after")
    assert text.startswith("before ")
    assert text.endswith(" after")
    assert not any(part in text for part in ("S3cr", "line", form.strip("'\"")))


def test_a_secret_that_holds_another_is_hidden_whole():
    redactor = redact.Redactor()
    redactor.add("abcdef")
    redactor.add("abcdefghi")
    assert redactor("abcdefghi") == redact.HIDDEN


def test_what_is_secret_in_a_url_is_hidden_also_alone():
    hide = redact.Redactor()
    hide.add("postgres://reader:p%40ss-word@db.example/rows?user=visitor&signature=abcdef123")
    assert hide("p%40ss-word, p@ss-word, abcdef123") == "<redacted>, <redacted>, <redacted>"
    assert hide("reader and visitor at db.example") == "reader and visitor at db.example"


def test_a_secret_of_many_lines_is_hidden_line_by_line():
    redactor = redact.Redactor()
    redactor.add("-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG\n-----END KEY-----\n")
    assert "MIIEvQIBADANBgkqhkiG" not in redactor("log: MIIEvQIBADANBgkqhkiG")


def test_short_values_do_not_eat_ordinary_text():
    redactor = redact.Redactor()
    redactor.add("", "a", "1.0")
    assert redactor("a loss of 1.0") == "a loss of 1.0"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("see https://user:pass@host/x", "see https://<redacted>@host/x"),
        ("https://ghp_0123@github.com", "https://<redacted>@github.com"),
        ("https://u:p@ss@host", "https://<redacted>@host"),
        ("s3://b/k?X-Amz-Signature=ab&part=1", "s3://b/k?X-Amz-Signature=<redacted>&part=1"),
        ("https://h/?part=1&access_token=ab#x", "https://h/?part=1&access_token=<redacted>#x"),
        ("https://h/?sig=ab&sv=1", "https://h/?sig=<redacted>&sv=1"),
    ],
)
def test_credentials_in_urls_are_hidden(text, clean):
    assert redact.redact(text) == clean
    assert redact.has_secret(text)
    assert not redact.has_secret(clean)


@pytest.mark.parametrize(
    "text", ["https://host/x?page=2", "gs://bucket/a@b", "mail me@host", "http://h:80/?max_tokens=5"]
)
def test_ordinary_urls_stay(text):
    assert redact.redact(text) == text
    assert not redact.has_secret(text)


def test_an_environment_variable_is_resolved_and_from_then_on_hidden(monkeypatch):
    monkeypatch.setenv("MY_SETTING", "sentinel-93481")
    assert redact.redact("sentinel-93481") == "sentinel-93481"
    assert redact.resolve("env:MY_SETTING") == "sentinel-93481"
    assert redact.redact("x sentinel-93481") == "x <redacted>"


@pytest.mark.parametrize(
    ("text", "is_one"), [("env:A_1", True), ("env:", False), ("env:1", False), ("env:a b", False), ("A", False)]
)
def test_only_the_name_of_a_variable_is_a_reference(text, is_one):
    assert redact.is_reference(text) == is_one


@pytest.mark.parametrize("value", [None, ""])
def test_a_missing_variable_is_named_with_its_key(monkeypatch, value):
    monkeypatch.delenv("MISSING_ONE", raising=False)
    if value is not None:
        monkeypatch.setenv("MISSING_ONE", value)
    with pytest.raises(
        ConfigError, match=r"--config\.log\.key=env:MISSING_ONE: the environment variable MISSING_ONE is"
    ):
        redact.resolve("env:MISSING_ONE", "log.key")


def test_secrets_of_the_environment_are_hidden_from_the_start():
    code = "from jaxtrain.redact import redact; print(redact('value-of-secret value-of-other'))"
    environment = {"MY_TOKEN": "value-of-secret", "MY_TOKENS": "value-of-other", "PYTHONPATH": "."}
    output = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert output == "<redacted> value-of-other\n"


@given(st.text(min_size=6), st.text(), st.text())
def test_no_secret_survives_whatever_stands_around_it(secret, before, after):
    redactor = redact.Redactor()
    redactor.add(secret)
    assert secret not in redactor(before + secret + after) or secret in redact.HIDDEN


@given(st.text())
def test_redaction_twice_changes_nothing_more(text):
    assert redact.redact(redact.redact(text)) == redact.redact(text)

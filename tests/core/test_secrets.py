"""Secrets are masked whole, however they arrive; what is none stays as it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latchstep.core.secrets import LEAST, MARK, MAX_HELD, Masker, Redactor, secret_values

KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA\nq83vEjRWeJA=\n-----END RSA PRIVATE KEY-----"

SECRETS = {
    "Anthropic key": "sk-ant-api03-" + "aB3_" * 12,
    "API key": "sk-proj-" + "Zz9" * 10,
    "GitHub token": "ghp_" + "a1B2" * 9,
    "AWS key id": "AKIAIOSFODNN7EXAMPLE",
    "AWS secret key": "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "Google key": "AIza" + "Sy_-" * 8 + "abc",
    "Slack token": "xoxb-1234567890-abcdefghij",
    "Stripe key": "sk_live_" + "4eC39HqLyjWDarjt",
    "GitLab token": "glpat-" + "x" * 20,
    "npm token": "npm_" + "a1" * 18,
    "PyPI token": "pypi-" + "AgEIcHlwaS5vcmc" * 6,
    "Hugging Face token": "hf_" + "aB" * 17,
    "JSON Web Token": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P",
    "private key": KEY,
}

INNOCENT = [
    "a task-something-long-enough-for-this-ABC1 in a list",
    "sk-folding-cube-container-wrapper { color: red }",
    "http://example.com/a:b@c https://host:8080/path",
    "https://pypi.org/project/pypi-attestations-and-more/",
    "ghp_short npm_config_cache AKIA eyJ",
    "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
    "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "lone \ud800 surrogate",
]


@pytest.mark.parametrize("what", SECRETS)
def test_each_shape_is_masked_and_named(what: str) -> None:
    masked = Masker().mask(f"before {SECRETS[what]} after")
    assert masked == f"before {MARK}{what}] after"


@pytest.mark.parametrize("text", INNOCENT)
def test_what_is_no_secret_stays(text: str) -> None:
    assert Masker().mask(text) == text


def test_a_password_in_a_url_leaves_the_rest_of_it() -> None:
    masked = Masker().mask("postgres://me:hunter2@db.internal/app")
    assert masked == f"postgres://{MARK}name and password in a URL]@db.internal/app"


def test_values_in_use_are_masked_by_name_and_short_ones_are_left() -> None:
    values = secret_values(
        {"MY_API_KEY": "correct horse", "DB_PASSWORD": "abc", "PATH": "/usr/bin:/bin", "KEYMAP": "x" * 9}
    )
    assert set(values) == {"MY_API_KEY", "DB_PASSWORD"}
    assert Masker(values).mask("it is correct horse, abc") == f"it is {MARK}MY_API_KEY], abc"


@pytest.mark.parametrize(
    "value",
    [
        "postgres",
        "Password",
        "change-me",
        "development",
        "/home/me/.ssh/id_ed25519",
        "~/.config/key.json",
        "./certs/a.pem",
    ],
)
def test_values_that_say_nothing_are_left(value: str) -> None:
    text = f"it is {value}, and not a secret"
    assert Masker({"SOME_KEY": value}).mask(text) == text


@pytest.mark.parametrize("value", ["/wJalrXUtnFEMI/K7MDENG", "passwords1", "Xpostgres", "~wJalrXUtn"])
def test_values_that_only_begin_like_one_are_masked(value: str) -> None:
    assert Masker({"SOME_KEY": value}).mask(f"it is {value}.") == f"it is {MARK}SOME_KEY]."


def test_values_alone_are_masked_where_shapes_are_not() -> None:
    masker = Masker({"MY_API_KEY": "correct horse"}, shapes=False)
    assert masker.mask(f"correct horse, {SECRETS['npm token']}") == f"{MARK}MY_API_KEY], {SECRETS['npm token']}"


def test_json_is_masked_in_its_strings() -> None:
    assert Masker().mask_json({SECRETS["npm token"]: 1}) == {f"{MARK}npm token]": 1}
    masked = Masker().mask_json({"diff": f"+{SECRETS['GitHub token']}", "n": 3, "list": [KEY, None]})
    assert masked == {"diff": f"+{MARK}GitHub token]", "n": 3, "list": [f"{MARK}private key]", None]}


text = st.lists(
    st.one_of(
        st.sampled_from(list(SECRETS.values())),
        st.text("ab -\n", max_size=20),
        st.integers(MAX_HELD - 1200, MAX_HELD + 100).map(lambda size: "x" * size),
    ),
    max_size=6,
).map(" ".join)


@given(text, st.lists(st.integers(1, 200), max_size=40))
def test_a_stream_is_masked_however_it_is_cut(whole: str, sizes: list[int]) -> None:
    """No secret comes out, and what is left of the text is what masking all at once leaves."""
    data, redactor, out = whole.encode(), Redactor(Masker()), b""
    for size in sizes:
        out += redactor.feed(data[:size])
        data = data[size:]
    out += redactor.feed(data) + redactor.flush()
    assert out.decode() == Masker().mask(whole)


@given(st.text(max_size=200))
def test_masking_twice_changes_nothing_more(whole: str) -> None:
    masker = Masker({"A_TOKEN": "0123456789"})
    once = masker.mask(whole)
    assert masker.mask(once) == once


def test_least_is_what_it_says() -> None:
    value = "abcdefghij"[:LEAST]
    assert Masker({"K": value}).mask(value) == f"{MARK}K]"
    assert Masker({"K": value[:-1]}).mask(value[:-1]) == value[:-1]

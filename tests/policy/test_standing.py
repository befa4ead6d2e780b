"""Standing, and what the settings of a folder may do with and without it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latchstep.errors import DefinitionError
from latchstep.policy.trust import (
    MODES,
    Settings,
    Standing,
    Trust,
    mode_under,
    narrowed,
    settings_from,
    standing,
    understood,
)


def vouched(path: str = "/a", identity: str = "1", digest: str = "d", at: float = 1.0) -> Trust:
    return Trust(path=path, identity=identity, digest=digest, by="me", at=at)


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ([], "untrusted"),
        ([vouched("/b")], "untrusted"),
        ([vouched()], "trusted"),
        ([vouched(digest="other")], "changed"),
        ([vouched(identity="2")], "changed"),
        ([vouched(at=1), vouched(digest="other", at=2)], "changed"),
        ([vouched(digest="other", at=1), vouched(at=2)], "trusted"),
    ],
)
def test_a_folder_is_trusted_as_it_was_when_somebody_vouched_for_it(known: list[Trust], expected: Standing) -> None:
    assert standing(known, "/a", "1", "d") == expected


def test_settings_are_read_and_mistakes_are_named() -> None:
    settings = settings_from('mode = "plan"\nmax_steps = 5\nchecks = ["make test"]\ndeny = ["write: secrets/**"]\n')
    assert settings == Settings(mode="plan", max_steps=5, checks=("make test",), deny=("write: secrets/**",))
    for text, said in [
        ("mode = ", "settings.toml"),
        ('mode = "unconfined"', "unconfined"),
        ('base_url = "http://evil"', "base_url"),
        ("max_steps = 0", "max_steps"),
        ('checks = "make"', "array"),
    ]:
        with pytest.raises(DefinitionError, match=said):
            settings_from(text)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ('mod = "plan"\ndeny = ["bash: rm *"]\nmax_steps = 5\n', Settings(max_steps=5, deny=("bash: rm *",))),
        ('mode = "plan"\nask = ["read: *"]\ndenny = []\n', Settings(mode="plan", ask=("read: *",))),
        ('mode = "auto"\nallow = ["bash"]\nchecks = ["make"]\nx = 1\n', Settings()),
        ('mode = "plan"\ndeny = "bash: rm"\nmax_steps = 0\n', Settings(mode="plan")),
        ("deny = [", Settings()),
    ],
)
def test_of_settings_with_a_mistake_what_narrows_is_left(text: str, left: Settings) -> None:
    with pytest.raises(DefinitionError):
        settings_from(text)
    assert understood(text) == left


def test_untrusted_settings_start_nothing_and_allow_nothing() -> None:
    given = Settings(
        mode="edits", max_steps=5, checks=("make",), allow=("bash: *",), ask=("read: *",), deny=("bash: rm",)
    )
    assert narrowed(given) == Settings(mode="edits", max_steps=5, ask=("read: *",), deny=("bash: rm",))


@given(st.sampled_from([None, *MODES[:4]]), st.sampled_from([None, *MODES]), st.sampled_from(["untrusted", "changed"]))
def test_an_untrusted_folder_never_widens_the_mode(asked: str | None, typed: str | None, how: Standing) -> None:
    mode = mode_under(Settings(mode=asked), typed, how)  # type: ignore[arg-type]
    assert MODES.index(mode) <= MODES.index(typed or "ask")


@given(st.sampled_from([None, *MODES[:4]]), st.sampled_from([None, *MODES]))
def test_no_folder_ever_makes_a_run_unconfined_and_what_was_typed_holds_in_a_trusted_one(
    asked: str | None, typed: str | None
) -> None:
    mode = mode_under(Settings(mode=asked), typed, "trusted")  # type: ignore[arg-type]
    assert mode == (typed or asked or "ask")
    assert mode != "unconfined" or typed == "unconfined"

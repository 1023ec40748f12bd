"""Addresses of the store: what they may be, and that they keep their secrets."""

import pytest

from twolane.router.shared.address import parse_address, without_secrets


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h", "redis://h:6379/0"),
        ("redis://user:secret@h:1/2", "redis://h:1/2"),
        ("redis://:secret@[::1]:7", "redis://[::1]:7/0"),
        ("rediss://h?ca=/secret", "rediss://h:6379/0"),
        ("redis+sentinel://u:secret@a,b:1/tw", "redis+sentinel://a:26379,b:1/tw"),
        ("rediss+sentinel://a/tw/3?sentinel_password=secret", "rediss+sentinel://a:26379/tw"),
    ],
)
def test_an_address_is_shown_without_its_secrets(url: str, shown: str) -> None:
    address = parse_address(url)
    assert str(address) == shown
    assert "secret" not in repr(address)


def test_an_address_has_all_that_a_url_says() -> None:
    url = "rediss+sentinel://u:p%40ss@a,b:1/tw/3?ca=c&cert=d&key=e&sentinel_username=f"
    address = parse_address(url)
    assert address.hosts == (("a", 26379), ("b", 1))
    assert (address.service, address.db, address.has_tls) == ("tw", 3, True)
    assert (address.username, address.password) == ("u", "p@ss")
    assert (address.ca, address.cert, address.key) == ("c", "d", "e")
    assert (address.sentinel_username, address.sentinel_password) == ("f", "")


def test_a_text_is_shown_without_the_secrets_of_its_addresses() -> None:
    text = "--store 'redis+sentinel://u:secret@a,b/tw?sentinel_password=secret&ca=c' --port 1"
    shown = "--store 'redis+sentinel://…@a,b/tw?sentinel_password=…&ca=c' --port 1"
    assert without_secrets(text) == shown
    assert without_secrets("https://h/x?a=b me@there") == "https://h/x?a=b me@there"


@pytest.mark.parametrize(
    "url",
    [
        "", "h:6379", "http://secret@h", "redis://", "redis://:secret@", "redis://h:secret",
        "redis://h/secret", "redis://h/1/2", "redis://h:99999", "redis://h:", "redis://h,",
        "redis+sentinel://secret", "redis+other://h/s", "redis://h?secret", "redis://h#secret",
        "redis://h?ca=secret", "redis://[::1", "redis://[::1]secret",
    ],
)  # fmt: skip
def test_what_is_no_address_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ValueError, match="store") as refused:
        parse_address(url)
    assert "secret" not in str(refused.value)

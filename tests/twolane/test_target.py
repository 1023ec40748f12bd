"""Where a client connects, and what it shows there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from twolane import AsyncClient, InvalidParameterError, InvalidRequestError
from twolane.cli.app import app
from twolane.config import ClientConfig, contexts_path
from twolane.security.contexts import followed, read_contexts
from twolane.security.target import Target, find_target

FILE = """\
current = "prod"  # of the team

[contexts.prod]
endpoint = "gpu-a:7200"
ca = "certs/ca.crt"
api_key = "tl_1_prod"

[contexts.lab]
endpoint = "lab:7200"
ca = "/etc/ca.crt"
cert = "~/me.crt"
key = "~/me.key"
token_command = "printf tl_2_lab"
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("TWOLANE_ENDPOINT", "TWOLANE_API_KEY", "TWOLANE_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def file(home: Path) -> Path:
    path = contexts_path()
    path.parent.mkdir(parents=True)
    path.write_text(FILE)
    return path


def target(endpoint: str | None = None, **options: Any) -> Target:
    return find_target(endpoint, ClientConfig(**options))


def test_without_a_file_it_is_this_machines_cluster_in_plain_text() -> None:
    assert target() == Target("localhost:7200")


def test_the_current_context_says_where_and_what_to_show(file: Path) -> None:
    found = target()
    assert (found.endpoint, found.api_key) == ("gpu-a:7200", "tl_1_prod")
    assert found.ca == str(file.parent / "certs/ca.crt")
    assert found.metadata == (("authorization", "Bearer tl_1_prod"),)
    assert "tl_1_prod" not in repr(found)


def test_an_endpoint_that_is_named_gets_nothing_of_the_current_context(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert target("localhost:1") == Target("localhost:1")
    monkeypatch.setenv("TWOLANE_ENDPOINT", "localhost:2")
    assert target() == Target("localhost:2")


def test_a_context_that_is_named_goes_with_what_is_named_beside_it(
    file: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Target("lab:7200", "/etc/ca.crt", f"{home}/me.crt", f"{home}/me.key", "tl_2_lab")
    assert target(context="lab") == lab
    monkeypatch.setenv("TWOLANE_CONTEXT", "lab")
    assert target() == lab
    assert target("10.0.0.1:7200", api_key="tl_3_own").endpoint == "10.0.0.1:7200"
    assert target("10.0.0.1:7200", api_key="tl_3_own").api_key == "tl_3_own"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"cert": "a"}, "cert is 'a'; it must be given together with key"),
        ({"cert": "a", "key": "b"}, "given together with ca"),
        ({"api_key": "tl_1_x"}, "sent over TLS"),
        ({"context": "none"}, "has no context 'none'; it has lab, prod"),
    ],
)
def test_what_does_not_go_together_is_refused(
    file: Path, options: dict[str, Any], why: str
) -> None:
    with pytest.raises(InvalidRequestError, match=why):
        target("10.0.0.1:7200", **options)


def test_a_key_is_shown_in_plain_text_on_this_machine_alone() -> None:
    assert target("127.0.0.1:7200", api_key="tl_1_x").api_key == "tl_1_x"
    assert target("10.0.0.1:7200", api_key="tl_1_x", ca="ca.crt").api_key == "tl_1_x"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("curent = 'a'", "there is no curent; there are contexts, current"),
        (
            "[contexts.a]\nhost = 'b'",
            "there is no contexts.a.host; there are admin_endpoint, api_key, ca",
        ),
        ("[contexts.a]\nca = 1", "contexts.a.ca must be a string"),
        ("[contexts.a]\napi_key='x'\ntoken_command='y'", "take one"),
        ("[", "cannot be read"),
        ("contexts = 3", "contexts are tables"),
    ],
)
def test_a_file_that_is_wrong_says_where(file: Path, text: str, why: str) -> None:
    file.write_text(text)
    with pytest.raises(InvalidRequestError, match=why):
        read_contexts(file)


def test_a_token_command_that_fails_says_so(file: Path) -> None:
    file.write_text("[contexts.a]\nendpoint='localhost:1'\ntoken_command='cat /nowhere'\n")
    with pytest.raises(InvalidParameterError, match="it failed: cat: /nowhere: No such file"):
        target(context="a")


async def test_a_file_that_cannot_be_read_is_named(home: Path) -> None:
    client = AsyncClient("localhost:1", config=ClientConfig(ca=home / "no.crt"))
    with pytest.raises(InvalidParameterError, match=r"ca is .*no\.crt.* can be read"):
        await client.models()


def twolane(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def test_contexts_are_listed_chosen_and_shown_without_their_keys(file: Path) -> None:
    assert twolane("context", "use", "lab").output == "lab is the current context\n"
    assert file.read_text() == FILE.replace('"prod"  # of the team', '"lab"')
    listed = twolane("context", "list").output
    assert "lab      *  lab:7200    a certificate and an API key" in listed
    assert "prod        gpu-a:7200  an API key" in listed
    assert json.loads(twolane("context", "list", "--json").output)["current"] == "lab"
    shown = twolane("context", "show", "prod").output
    assert "endpoint = gpu-a:7200" in shown
    assert "tl_1_prod" not in shown
    assert twolane("context", "use", "none").exit_code == 2
    file.write_text(FILE.partition("\n")[2])
    assert "has no current context; it has lab, prod" in twolane("context", "show").output
    twolane("context", "use", "prod")
    assert file.read_text().startswith('current = "prod"\n')


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            '# clusters [prod, a]\ncurrent = "a"\n[contexts.a]\n[contexts.prod]\n',
            '# clusters [prod, a]\ncurrent = "prod"\n[contexts.a]\n[contexts.prod]\n',
        ),
        (
            'contexts.prod.endpoint = "a:7200"\n',
            'current = "prod"\ncontexts.prod.endpoint = "a:7200"\n',
        ),
        (
            'contexts.prod.endpoint = "a:7200"\r\ncurrent = "a"\r\n[contexts.a]\r\n',
            'contexts.prod.endpoint = "a:7200"\r\ncurrent = "prod"\r\n[contexts.a]\r\n',
        ),
        (
            'contexts = {prod = {endpoint = "a:7200"}}\n',
            'current = "prod"\ncontexts = {prod = {endpoint = "a:7200"}}\n',
        ),
    ],
)
def test_choosing_a_context_changes_one_line(file: Path, before: str, after: str) -> None:
    file.write_bytes(before.encode())
    done = twolane("context", "use", "prod")
    assert done.exit_code == 0, repr(done.exception)
    assert file.read_bytes() == after.encode()
    assert [each.name for each in file.parent.iterdir()] == [file.name]


@pytest.mark.parametrize("name", ['a"b', "a\\1", "a\\nb", "a\nb", "\x7f", "ü", "😀"])
def test_a_context_may_have_any_name(file: Path, name: str) -> None:
    key = json.dumps(name, ensure_ascii=False).replace("\x7f", "\\u007f")
    file.write_text(f"current = 'x'\n[contexts.x]\n[contexts.{key}]\n", encoding="utf-8")
    done = twolane("context", "use", name)
    assert done.exit_code == 0, repr(done.exception)
    found = read_contexts(file)
    assert (found.current, set(found.named)) == (name, {"x", name})


@pytest.mark.parametrize(
    "text",
    [
        "'current' = 'a'\n[contexts.a]\n[contexts.prod]\n",
        "current = '''\na'''\n[contexts.a]\n[contexts.prod]\n",
        'contexts.prod.endpoint = """\ncurrent = 1"""\ncontexts.a.endpoint = ""\n',
    ],
)
def test_a_file_that_cannot_be_changed_is_left_as_it_is(file: Path, text: str) -> None:
    file.write_text(text)
    done = twolane("context", "use", "prod")
    assert done.exit_code == 2, repr(done.exception)
    assert 'was not changed: write current = "prod" in its first line yourself' in done.stderr
    assert file.read_text() == text
    assert [each.name for each in file.parent.iterdir()] == [file.name]


def test_a_link_to_the_file_stays_one_and_the_file_keeps_its_mode(file: Path, home: Path) -> None:
    real = home / "dotfiles.toml"
    file.rename(real)
    real.chmod(0o640)
    file.symlink_to(real)
    assert twolane("context", "use", "lab").exit_code == 0
    assert file.is_symlink()
    assert read_contexts(real).current == "lab"
    assert real.stat().st_mode & 0o777 == 0o640


def test_where_no_context_is_named_the_commands_say_so_with_the_file(home: Path) -> None:
    for line in (("list",), ("show",), ("show", "prod"), ("use", "prod")):
        output = twolane("context", *line).output
        assert "there are no contexts: " in output
        assert "config.toml names none" in output


def test_a_command_takes_a_context_and_files(file: Path) -> None:
    refused = twolane("models", "--context", "none")
    assert refused.exit_code == 2
    assert "has no context 'none'" in refused.output
    refused = twolane("models", "--endpoint", "localhost:1", "--cert", "a")
    assert "cert is 'a'; it must be given together with key" in refused.output


def test_only_a_files_own_links_are_followed(tmp_path: Path) -> None:
    """Of the folders before it, a link may lead to another root, as /proc/PID/root does."""
    (tmp_path / "real").mkdir()
    (tmp_path / "folder").symlink_to("real")
    path = tmp_path / "folder" / "keys.yaml"
    assert followed(path) == path
    path.symlink_to("link.yaml")
    (tmp_path / "real" / "link.yaml").symlink_to("../last.yaml")
    assert followed(path) == tmp_path / "folder" / ".." / "last.yaml"

"""`splitrelay keys`: what a person at the authority, or at a client, types and sees."""

import json
import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from splitrelay.cli.keys import keys
from splitrelay.errors import InputError, OutOfRange, OutputError, SplitrelayError, UnknownName
from splitrelay.security.identity import load_identity
from splitrelay.security.sealing_keys import load_epochs
from tests.support.key_folders import DAY, consortium, secrets_of


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def asked(*words: str) -> Result:
    return CliRunner().invoke(keys, list(words))


def said(line: str) -> str:
    result = asked(*line.split())
    assert result.exit_code == 0, result.output
    return result.output


def told(line: str) -> Any:
    return json.loads(CliRunner().invoke(keys, [*line.split(), "--format", "json"]).stdout)


def refused(line: str) -> SplitrelayError:
    error = asked(*line.split()).exception
    assert isinstance(error, SplitrelayError), line
    assert "\n" not in str(error) and error.exit_code == 2
    return error


@pytest.fixture
def made() -> None:
    said("authority --name clinics")
    said("issue server --host s.example.org --host 10.0.0.7")
    said("issue hospital-3 --client 3")


def test_from_nothing_to_keys_that_load(made: None) -> None:
    server, client = load_identity(Path("server")), load_identity(Path("hospital-3"))
    assert (server.role, server.hosts) == ("server", ("s.example.org", "10.0.0.7"))
    assert (client.role, client.m, client.consortium) == ("client", 3, "clinics")


def test_what_is_issued_is_what_must_be_brought_to_the_host(made: None) -> None:
    (row,) = told("issue hospital-4 --client 4 --evaluator --host 10.0.0.9")
    assert sorted(row["files"]) == sorted(path.name for path in Path(row["folder"]).iterdir())
    assert row["roles"] == ["client", "evaluator"] and row["client"] == 4


def test_an_observer_has_no_number_and_no_secret(made: None) -> None:
    (row,) = told("issue boss --observer --days 7")
    assert row["client"] is None and "sealing.json" not in row["files"]


def test_keys_are_made_beside_the_folder_that_is_named() -> None:
    said("authority --folder safe/authority --days 30")
    said("issue hospital-3 --client 3 --folder safe/authority")
    assert load_identity(Path("safe/hospital-3")).not_after <= datetime.now(UTC) + 30 * DAY


def test_show_lists_all_that_was_issued(made: None) -> None:
    said("renew hospital-3")
    said("revoke server")
    rows = [(row["name"], row["state"], row["client"], row["revoked"]) for row in told("show")]
    assert rows == [
        ("server", "revoked", None, True),
        ("hospital-3", "replaced", 3, False),
        ("hospital-3", "valid", 3, False),
    ]


def test_show_knows_a_holder_by_its_folder(made: None) -> None:
    said("rotate")
    (row,) = told("show hospital-3")
    assert (row["name"], row["state"], row["revoked"], row["epochs"]) == ("hospital-3", "valid", False, [1, 2])
    assert row["serial"] == json.loads(Path("hospital-3/identity.json").read_text())["serial"]


def test_show_warns_of_what_expires_soon(made: None) -> None:
    assert "Renew it" not in said("show")
    said("issue hospital-4 --client 4 --days 29")
    assert "hospital-4 expires in" in said("show") and "splitrelay keys renew hospital-4" in said("show hospital-4")


def test_show_shows_what_has_expired(tmp_path: Path) -> None:
    consortium(tmp_path, now=datetime.now(UTC) - 400 * DAY)
    (row,) = told("show hospital-3")
    assert row["state"] == "expired" and row["days_left"] < 0


def test_a_folder_without_a_list_does_not_know_whether_it_is_revoked(made: None) -> None:
    Path("hospital-3/crl.pem").unlink()
    assert told("show hospital-3")[0]["revoked"] is None


def test_revoking_says_what_must_reach_whom(made: None) -> None:
    said("issue hospital-4 --client 4")
    rows = {row["name"]: row["files"] for row in told("revoke hospital-3")}
    assert rows == {"server": ["crl.pem"], "hospital-4": ["crl.pem", "sealing.json"]}
    assert load_epochs(Path("hospital-4")).current == 2


def test_rotating_with_nobody_to_give_it_to_still_starts_an_epoch() -> None:
    said("authority")
    assert told("rotate") == []
    assert load_epochs(Path("authority")).current == 2


@pytest.mark.parametrize(
    ("line", "kind", "words"),
    [
        ("authority", OutputError, "authority is there already"),
        ("authority --folder new --days 0", OutOfRange, "1 <= days"),
        ("issue x", InputError, "needs a role. Give --host for a server"),
        ("issue x --client -1", OutOfRange, "0 <= m"),
        ("issue x --client 3", InputError, "client 3 is hospital-3 already"),
        ("issue x --host a:1", InputError, "without port"),
        ("issue ../x --client 9", InputError, "a name is"),
        ("issue hospital-3 --client 9", InputError, "keys renew hospital-3"),
        ("issue authority --client 9", OutputError, "is there already"),
        ("issue x --client 9 --folder nowhere", InputError, "splitrelay keys authority --folder nowhere"),
        ("renew hospital", UnknownName, "Did you mean 'hospital-3'"),
        ("revoke hospital", UnknownName, "Did you mean 'hospital-3'"),
        ("rotate --folder nowhere", InputError, "is no authority"),
        ("show nowhere", InputError, "no keys in nowhere"),
    ],
)
def test_wrong_words_get_one_line(made: None, line: str, kind: type[Exception], words: str) -> None:
    error = refused(line)
    assert type(error) is kind and words in str(error)


def test_nothing_secret_is_printed_or_logged(made: None, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    lines = ["show", "show hospital-3", "renew hospital-3", "rotate", "issue h4 --client 4", "revoke h4"]
    printed = [said(f"{line} --format {shape}") for line in lines[:4] for shape in ("table", "json")]
    printed += [said(line) for line in lines[4:]] + [str(refused("authority")), caplog.text]
    secrets = secrets_of(Path("hospital-3")) + secrets_of(Path("server"))
    assert len(secrets) >= 8
    assert [secret for secret in secrets if secret in "".join(printed).encode()] == []

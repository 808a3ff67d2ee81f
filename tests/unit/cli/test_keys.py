"""The commands `splitrelay keys ...`."""

import json
import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from splitrelay.cli.keys import keys
from splitrelay.errors import InputError, OutOfRange, OutputError, SplitrelayError, UnknownName
from splitrelay.security.encryption import load_secrets
from splitrelay.security.identity import load_identity
from tests.support.key_folders import DAY, consortium, secrets_of


@pytest.fixture(autouse=True)
def change_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(line: str) -> Result:
    return CliRunner().invoke(keys, line.split())


def run_text(line: str) -> str:
    result = run(line)
    assert result.exit_code == 0, result.output
    return result.output


def run_json(line: str) -> Any:
    return json.loads(CliRunner().invoke(keys, [*line.split(), "--format", "json"]).stdout)


def run_error(line: str) -> SplitrelayError:
    error = run(line).exception
    assert isinstance(error, SplitrelayError), line
    assert "\n" not in str(error) and error.exit_code == 2
    return error


@pytest.fixture
def consortium_keys() -> None:
    run_text("authority --name clinics")
    run_text("issue server --host s.example.org --host 10.0.0.7")
    run_text("issue hospital-3 --client 3")


def test_issued_keys_can_be_loaded(consortium_keys: None) -> None:
    server, client = load_identity(Path("server")), load_identity(Path("hospital-3"))
    assert (server.role, server.hosts) == ("server", ("s.example.org", "10.0.0.7"))
    assert (client.role, client.m, client.consortium) == ("client", 3, "clinics")


def test_issue_lists_all_files_of_folder(consortium_keys: None) -> None:
    (row,) = run_json("issue hospital-4 --client 4 --evaluator --host 10.0.0.9")
    assert sorted(row["files"]) == sorted(path.name for path in Path(row["folder"]).iterdir())
    assert row["roles"] == ["client", "evaluator"] and row["client"] == 4


def test_observer_has_no_number_and_no_secret(consortium_keys: None) -> None:
    (row,) = run_json("issue boss --observer --days 7")
    assert row["client"] is None and "sealing.json" not in row["files"]


def test_keys_are_written_next_to_authority() -> None:
    run_text("authority --folder safe/authority --days 30")
    run_text("issue hospital-3 --client 3 --folder safe/authority")
    assert load_identity(Path("safe/hospital-3")).not_after <= datetime.now(UTC) + 30 * DAY


def test_show_lists_all_issued_keys(consortium_keys: None) -> None:
    run_text("renew hospital-3")
    run_text("revoke server")
    rows = [(row["name"], row["state"], row["client"], row["revoked"]) for row in run_json("show")]
    assert rows == [
        ("server", "revoked", None, True),
        ("hospital-3", "replaced", 3, False),
        ("hospital-3", "valid", 3, False),
    ]


def test_show_accepts_folder_of_holder(consortium_keys: None) -> None:
    run_text("rotate")
    (row,) = run_json("show hospital-3")
    assert (row["name"], row["state"], row["revoked"], row["epochs"]) == ("hospital-3", "valid", False, [1, 2])
    assert row["serial"] == json.loads(Path("hospital-3/identity.json").read_text())["serial"]


def test_show_warns_before_keys_expire(consortium_keys: None) -> None:
    assert "splitrelay keys renew" not in run_text("show")
    run_text("issue hospital-4 --client 4 --days 29")
    assert "splitrelay keys renew hospital-4" in run_text("show")
    assert "splitrelay keys renew hospital-4" in run_text("show hospital-4")


def test_show_lists_expired_keys(tmp_path: Path) -> None:
    consortium(tmp_path, now=datetime.now(UTC) - 400 * DAY)
    (row,) = run_json("show hospital-3")
    assert row["state"] == "expired" and row["days_left"] < 0


def test_revoked_is_unknown_without_revocation_list(consortium_keys: None) -> None:
    Path("hospital-3/crl.pem").unlink()
    assert run_json("show hospital-3")[0]["revoked"] is None


def test_revoke_lists_changed_files(consortium_keys: None) -> None:
    run_text("issue hospital-4 --client 4")
    rows = {row["name"]: row["files"] for row in run_json("revoke hospital-3")}
    assert rows == {"server": ["crl.pem"], "hospital-4": ["crl.pem", "sealing.json"]}
    assert load_secrets(Path("hospital-4")).current == 2


def test_rotate_without_clients_starts_epoch() -> None:
    run_text("authority")
    assert run_json("rotate") == []
    assert load_secrets(Path("authority")).current == 2


@pytest.mark.parametrize(
    ("line", "kind", "text"),
    [
        ("authority", OutputError, "authority"),
        ("authority --folder new --days 0", OutOfRange, "1 <= days"),
        ("issue x", InputError, "--host"),
        ("issue x --client -1", OutOfRange, "0 <= m"),
        ("issue x --client 3", InputError, "splitrelay keys revoke hospital-3"),
        ("issue x --host a:1", InputError, "a:1"),
        ("issue ../x --client 9", InputError, "../x"),
        ("issue hospital-3 --client 9", InputError, "keys renew hospital-3"),
        ("issue authority --client 9", OutputError, "authority"),
        ("issue x --client 9 --folder nowhere", InputError, "splitrelay keys authority --folder nowhere"),
        ("renew hospital", UnknownName, "hospital-3"),
        ("revoke hospital", UnknownName, "hospital-3"),
        ("rotate --folder nowhere", InputError, "splitrelay keys authority --folder nowhere"),
        ("show nowhere", InputError, "nowhere"),
    ],
)
def test_wrong_arguments_raise_one_line_error(
    consortium_keys: None, line: str, kind: type[Exception], text: str
) -> None:
    error = run_error(line)
    assert type(error) is kind and text in str(error)


def test_no_secret_is_printed_or_logged(consortium_keys: None, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    lines = ["show", "show hospital-3", "renew hospital-3", "rotate", "issue h4 --client 4", "revoke h4"]
    printed = [run_text(f"{line} --format {shape}") for line in lines[:4] for shape in ("table", "json")]
    printed += [run_text(line) for line in lines[4:]] + [str(run_error("authority")), caplog.text]
    secrets = secrets_of(Path("hospital-3")) + secrets_of(Path("server"))
    assert len(secrets) >= 8
    assert [secret for secret in secrets if secret in "".join(printed).encode()] == []

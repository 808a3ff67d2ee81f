"""The authority issues, renews, revokes and rotates keys, and a killed command can be completed."""

import os
import shutil
from pathlib import Path

import pytest

from splitrelay.errors import InputError, OutOfRange, OutputError, UnknownName
from splitrelay.security.authority import Authority, create_authority, list_keys, open_authority
from splitrelay.security.encryption import load_secrets
from splitrelay.security.identity import load_identity
from splitrelay.security.revocation import Revocations
from tests.support.error_fields import expect_error
from tests.support.key_folders import DAY, TODAY, consortium, copied


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return consortium(tmp_path_factory.mktemp("keys"), now=TODAY)


@pytest.fixture
def authority(issued: Authority, tmp_path: Path) -> Authority:
    return copied(issued, tmp_path)


def get_folder(authority: Authority, name: str) -> Path:
    return authority.folder.parent / name


def list_epochs(authority: Authority, name: str) -> list[int]:
    return sorted(load_secrets(get_folder(authority, name)).secrets)


def list_states(authority: Authority) -> dict[str, str]:
    return {one.peer.name: one.state for one in list_keys(authority.folder, TODAY)}


def read_files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_existing_authority_is_not_overwritten(authority: Authority) -> None:
    before = read_files(authority.folder)
    with pytest.raises(OutputError):
        create_authority(authority.folder, "clinics")
    assert read_files(authority.folder) == before


def test_folder_without_authority_raises_error_with_command(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        open_authority(tmp_path)
    assert "splitrelay keys authority --folder" in str(error.value.hint)


def test_authority_can_be_opened_from_its_own_folder(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(authority.folder)
    open_authority(Path()).issue_client("inside", 9, now=TODAY)
    assert load_identity(get_folder(authority, "inside"), TODAY).m == 9


@pytest.mark.parametrize("name", ["ca-key.pem", "register.json", "sealing.json", "ca.pem"])
def test_error_names_damaged_file(authority: Authority, name: str) -> None:
    (authority.folder / name).write_bytes(b"{}")
    with pytest.raises(InputError) as caught:
        open_authority(authority.folder).revoke("hospital-3", TODAY)
    assert name in str(caught.value) or name == "ca.pem"


@pytest.mark.parametrize("name", ["../x", "", ".x", "a/b", "a" * 64, "ä", "a b"])
def test_invalid_name_raises_error(authority: Authority, name: str) -> None:
    with pytest.raises(InputError) as error:
        authority.issue_client(name, 9, now=TODAY)
    assert error.value.value == repr(name)


@pytest.mark.parametrize("name", ["", " ", "x" * 65, "a\nb", "a=b"])
def test_invalid_consortium_name_raises_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError) as error:
        create_authority(tmp_path / "authority", name)
    assert error.value.value == repr(name)


def test_name_with_keys_raises_error_with_renew_command(authority: Authority) -> None:
    with pytest.raises(InputError) as error:
        authority.issue_client("hospital-3", 9, now=TODAY)
    assert "splitrelay keys renew hospital-3" in str(error.value.hint)


def test_number_in_use_raises_error_with_revoke_command(authority: Authority) -> None:
    with pytest.raises(InputError) as error:
        authority.issue_client("clinic", 3, now=TODAY)
    assert "splitrelay keys revoke hospital-3" in str(error.value.hint)


def test_several_clients_are_issued_together(authority: Authority) -> None:
    made = authority.issue_clients({f"clinic-{m}": m for m in range(10, 15)}, now=TODAY)
    assert [load_identity(one.folder, TODAY).m for one in made] == [10, 11, 12, 13, 14]
    assert authority.read_registry().get_newest("clinic-12").peer == made[2].peer


@pytest.mark.parametrize("numbers", [{"a": 10, "b": 3}, {"a": 10, "b": 10}, {"a": 10, "hospital-3": 11}], ids=str)
def test_several_clients_with_one_error_issue_nothing(authority: Authority, numbers: dict[str, int]) -> None:
    before = read_files(authority.folder.parent)
    with pytest.raises(InputError):
        authority.issue_clients(numbers, now=TODAY)
    assert read_files(authority.folder.parent) | {"authority/.lock": b""} == before | {"authority/.lock": b""}


def test_expired_client_with_reused_number_cannot_be_renewed(authority: Authority) -> None:
    later = TODAY + 400 * DAY
    authority.issue_client("successor", 3, now=later)
    with pytest.raises(InputError) as error:
        authority.renew("hospital-3", now=later)
    assert "splitrelay keys revoke successor" in str(error.value.hint)


def test_existing_folder_is_not_changed(authority: Authority) -> None:
    get_folder(authority, "clinic").mkdir()
    with pytest.raises(OutputError):
        authority.issue_client("clinic", 9, now=TODAY)
    assert list(get_folder(authority, "clinic").iterdir()) == []


def test_holder_without_role_raises_error(authority: Authority) -> None:
    with pytest.raises(InputError):
        authority.issue_client("nobody")
    with pytest.raises(InputError):
        authority.issue_server("nobody", [])


@pytest.mark.parametrize("days", [0, -1, 36501])
def test_days_outside_limits_raise_error(authority: Authority, days: int) -> None:
    with pytest.raises(OutOfRange) as error:
        authority.issue_client("x", 9, days=days, now=TODAY)
    assert error.value.value == days


def test_certificate_ends_before_authority(authority: Authority) -> None:
    late = authority.not_after - 10 * DAY
    with pytest.raises(OutOfRange):
        authority.issue_client("x", 9, days=11, now=late)
    assert authority.issue_client("x", 9, now=late).peer.not_after == authority.not_after


def test_issue_before_creation_of_authority_raises_error(authority: Authority) -> None:
    with pytest.raises(InputError):
        authority.issue_client("x", 9, days=1, now=TODAY - 2 * DAY)


def test_renew_changes_only_key_and_serial(authority: Authority) -> None:
    old = load_identity(get_folder(authority, "hospital-3"), TODAY)
    (get_folder(authority, "hospital-3") / "notes.txt").write_text("ours")
    authority.renew("hospital-3", now=TODAY + 300 * DAY)
    new = load_identity(get_folder(authority, "hospital-3"), TODAY + 600 * DAY)
    assert (new.name, new.roles, new.m, new.hosts) == (old.name, old.roles, old.m, old.hosts)
    assert new.serial != old.serial and new.key != old.key
    assert (get_folder(authority, "hospital-3") / "notes.txt").read_text() == "ours"


def test_renew_creates_missing_folder(authority: Authority) -> None:
    shutil.rmtree(get_folder(authority, "hospital-3"))
    authority.renew("hospital-3", now=TODAY)
    assert load_identity(get_folder(authority, "hospital-3"), TODAY).m == 3


def test_unknown_name_raises_error_with_similar_name(authority: Authority) -> None:
    for command in (authority.renew, authority.revoke):
        with pytest.raises(UnknownName) as error:
            command("hospitl-3")
        assert "'hospital-3'" in str(error.value.hint)


def test_revoke_updates_all_folders_and_starts_epoch(authority: Authority) -> None:
    serial = load_identity(get_folder(authority, "hospital-3"), TODAY).serial
    changed = {one.peer.name: one.files for one in authority.revoke("hospital-3", TODAY)}
    assert changed == {
        "server": ("crl.pem",),
        "hospital-4": ("crl.pem", "sealing.json"),
        "judge": ("crl.pem", "sealing.json"),
        "boss": ("crl.pem",),
    }
    assert all(Revocations(get_folder(authority, name) / "crl.pem").is_revoked(serial) for name in changed)
    assert list_epochs(authority, "hospital-4") == list_epochs(authority, "judge") == [1, 2]
    assert list_epochs(authority, "hospital-3") == [1]
    assert list_states(authority)["hospital-3"] == "revoked"
    assert [one.state for one in list_keys(get_folder(authority, "hospital-3"), TODAY)] == ["revoked"]


def test_revoke_of_holder_without_secret_starts_no_epoch(authority: Authority) -> None:
    authority.revoke("boss", TODAY)
    assert authority.get_epoch() == 1


def test_revoke_includes_replaced_certificates(authority: Authority) -> None:
    old = load_identity(get_folder(authority, "hospital-3"), TODAY).serial
    new = authority.renew("hospital-3", now=TODAY).peer.serial
    authority.revoke("hospital-3", TODAY)
    listed = Revocations(get_folder(authority, "server") / "crl.pem")
    assert listed.is_revoked(old) and listed.is_revoked(new)


def test_second_revoke_starts_no_epoch(authority: Authority) -> None:
    authority.revoke("hospital-3", TODAY)
    authority.revoke("hospital-3", TODAY)
    assert authority.get_epoch() == 2


def test_revoked_holder_cannot_be_renewed_but_its_number_is_free(authority: Authority) -> None:
    authority.revoke("hospital-3", TODAY)
    with pytest.raises(InputError):
        authority.renew("hospital-3", now=TODAY)
    assert authority.issue_client("hospital-3b", 3, now=TODAY).peer.m == 3
    assert list_epochs(authority, "hospital-3b") == [1, 2]


def test_rotate_adds_secret_for_all_clients(authority: Authority) -> None:
    before = load_secrets(get_folder(authority, "hospital-3"))
    changed = authority.rotate(TODAY)
    after = load_secrets(get_folder(authority, "hospital-3"))
    assert {one.peer.name for one in changed} == {"hospital-3", "hospital-4", "judge"}
    assert {one.files for one in changed} == {("sealing.json",)}
    assert (after.current, after.secrets[1]) == (2, before.secrets[1]) and after.secrets[2] != after.secrets[1]
    assert not (get_folder(authority, "server") / "sealing.json").exists()


def test_rotate_writes_secret_into_missing_folder(authority: Authority) -> None:
    shutil.rmtree(get_folder(authority, "hospital-3"))
    authority.rotate(TODAY)
    assert [path.name for path in get_folder(authority, "hospital-3").iterdir()] == ["sealing.json"]


class ProcessKilled(BaseException):
    """Stands for kill -9."""


def kill_at_flush(flush: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the process die when it writes to the disk for the n-th time."""
    remaining, real = iter(range(flush)), os.fsync

    def flush_or_die(descriptor: int) -> None:
        if next(remaining, None) is None:
            raise ProcessKilled
        real(descriptor)

    monkeypatch.setattr(os, "fsync", flush_or_die)


@pytest.mark.parametrize("flush", range(0, 30, 3))
def test_killed_revoke_is_completed_by_second_revoke(
    authority: Authority, flush: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    serial = load_identity(get_folder(authority, "hospital-3"), TODAY).serial
    kill_at_flush(flush, monkeypatch)
    with pytest.raises(ProcessKilled):
        authority.revoke("hospital-3", TODAY)
    monkeypatch.undo()
    again = open_authority(authority.folder)
    again.revoke("hospital-3", TODAY)
    assert again.get_epoch() == 2 and list_epochs(authority, "hospital-4") == [1, 2]
    assert all(Revocations(get_folder(authority, name) / "crl.pem").is_revoked(serial) for name in ("server", "judge"))


@pytest.mark.parametrize(("flush", "known"), [(0, False), (1, True), (4, True), (8, True)])
def test_killed_issue_leaves_no_folder_and_no_unknown_certificate(
    authority: Authority, flush: int, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_at_flush(flush, monkeypatch)
    with pytest.raises(ProcessKilled):
        authority.issue_client("clinic", 9, now=TODAY)
    monkeypatch.undo()
    assert not get_folder(authority, "clinic").exists()
    assert ("clinic" in list_states(authority)) is known
    if known:
        authority.renew("clinic", now=TODAY)
    else:
        authority.issue_client("clinic", 9, now=TODAY)
    assert load_identity(get_folder(authority, "clinic"), TODAY).m == 9


def test_folder_is_created_by_one_rename(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*paths: object) -> None:
        raise ProcessKilled

    monkeypatch.setattr(os, "rename", die)
    with pytest.raises(ProcessKilled):
        authority.issue_client("clinic", 9, now=TODAY)
    assert not get_folder(authority, "clinic").exists()


def test_full_disk_changes_nothing(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    before = read_files(authority.folder.parent)
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OutputError):
        authority.issue_client("clinic", 9, now=TODAY)
    monkeypatch.undo()
    after = read_files(authority.folder.parent)
    after.pop("authority/.lock", None), before.pop("authority/.lock", None)
    assert after == before


def test_files_of_killed_process_are_removed(authority: Authority) -> None:
    left = authority.folder.parent / ".splitrelay-clinic-dead"
    left.mkdir()
    (left / "key.pem").write_text("x")
    authority.issue_client("clinic", 9, now=TODAY)
    assert not left.exists()


def test_damaged_registry_raises_error_with_file_name(authority: Authority) -> None:
    for content in ("", "[]", "{", '{"consortium": 1, "list_number": "x", "issued": 3}', '{"issued": [{}]}'):
        (authority.folder / "register.json").write_text(content)
        with expect_error(InputError, what="register.json", hint=True):
            authority.read_registry()

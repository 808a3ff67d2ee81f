"""Does the authority issue, renew, revoke and rotate, and does a killed command leave nothing that cannot be mended?"""

import os
import shutil
from pathlib import Path

import pytest

from splitrelay.errors import InputError, OutOfRange, OutputError, SplitrelayError, UnknownName
from splitrelay.security.authority import Authority, create_authority, open_authority
from splitrelay.security.identity import load_identity
from splitrelay.security.key_listing import holders
from splitrelay.security.revocation import Revocations
from splitrelay.security.sealing_keys import load_epochs
from tests.support.key_folders import DAY, TODAY, consortium, copied


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return consortium(tmp_path_factory.mktemp("keys"), now=TODAY)


@pytest.fixture
def authority(issued: Authority, tmp_path: Path) -> Authority:
    return copied(issued, tmp_path)


def beside(authority: Authority, name: str) -> Path:
    return authority.folder.parent / name


def epochs(authority: Authority, name: str) -> list[int]:
    return sorted(load_epochs(beside(authority, name)).secrets)


def states(authority: Authority) -> dict[str, str]:
    return {one.who.name: one.state for one in holders(authority.folder, TODAY)}


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_authority_is_never_overwritten(authority: Authority) -> None:
    before = snapshot(authority.folder)
    with pytest.raises(OutputError, match="is there already"):
        create_authority(authority.folder, "clinics")
    assert snapshot(authority.folder) == before


def test_an_empty_place_is_no_authority(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is no authority\. Make one: splitrelay keys authority"):
        open_authority(tmp_path)


def test_an_authority_can_be_named_from_inside(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(authority.folder)
    open_authority(Path()).issue_client("inside", 9, now=TODAY)
    assert load_identity(beside(authority, "inside"), TODAY).m == 9


@pytest.mark.parametrize("name", ["ca-key.pem", "register.json", "sealing.json", "ca.pem"])
def test_a_damaged_authority_says_which_file(authority: Authority, name: str) -> None:
    (authority.folder / name).write_bytes(b"{}")
    with pytest.raises(InputError) as caught:
        open_authority(authority.folder).revoke("hospital-3", TODAY)
    assert name in str(caught.value) or name == "ca.pem"


@pytest.mark.parametrize("name", ["../x", "", ".x", "a/b", "a" * 64, "ä", "a b"])
def test_a_name_is_a_plain_word(authority: Authority, name: str) -> None:
    with pytest.raises(InputError, match="a name is 1 to 63"):
        authority.issue_client(name, 9, now=TODAY)


@pytest.mark.parametrize("name", ["", " ", "x" * 65, "a\nb", "a=b"])
def test_a_consortium_has_a_plain_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="a consortium needs a name"):
        create_authority(tmp_path / "authority", name)


def test_a_name_is_issued_once(authority: Authority) -> None:
    with pytest.raises(InputError, match=r"hospital-3 has keys already\. Renew them: splitrelay keys renew hospital-3"):
        authority.issue_client("hospital-3", 9, now=TODAY)


def test_a_clients_number_is_issued_once(authority: Authority) -> None:
    with pytest.raises(InputError, match="client 3 is hospital-3 already"):
        authority.issue_client("clinic", 3, now=TODAY)


def test_many_clients_are_issued_at_once(authority: Authority) -> None:
    made = authority.issue_clients({f"clinic-{m}": m for m in range(10, 15)}, now=TODAY)
    assert [load_identity(one.folder, TODAY).m for one in made] == [10, 11, 12, 13, 14]
    assert authority.register().newest("clinic-12").who == made[2].who


@pytest.mark.parametrize("numbers", [{"a": 10, "b": 3}, {"a": 10, "b": 10}, {"a": 10, "hospital-3": 11}], ids=str)
def test_of_many_clients_all_are_issued_or_none(authority: Authority, numbers: dict[str, int]) -> None:
    before = snapshot(authority.folder.parent)
    with pytest.raises(InputError, match="already"):
        authority.issue_clients(numbers, now=TODAY)
    assert snapshot(authority.folder.parent) | {"authority/.lock": b""} == before | {"authority/.lock": b""}


def test_an_expired_holder_does_not_come_back_to_a_number_that_is_taken(authority: Authority) -> None:
    later = TODAY + 400 * DAY
    authority.issue_client("heir", 3, now=later)
    with pytest.raises(InputError, match="client 3 is heir already"):
        authority.renew("hospital-3", now=later)


def test_a_folder_that_lies_there_is_not_touched(authority: Authority) -> None:
    beside(authority, "clinic").mkdir()
    with pytest.raises(OutputError, match="is there already"):
        authority.issue_client("clinic", 9, now=TODAY)
    assert list(beside(authority, "clinic").iterdir()) == []


def test_nobody_is_issued_without_a_role(authority: Authority) -> None:
    with pytest.raises(InputError, match="needs a role"):
        authority.issue_client("nobody")
    with pytest.raises(InputError, match="needs the hosts"):
        authority.issue_server("nobody", [])


@pytest.mark.parametrize("days", [0, -1, 36501])
def test_days_have_limits(authority: Authority, days: int) -> None:
    with pytest.raises(OutOfRange, match="1 <= days <= 36500"):
        authority.issue_client("x", 9, days=days, now=TODAY)


def test_nothing_outlives_the_authority(authority: Authority) -> None:
    late = authority.not_after - 10 * DAY
    with pytest.raises(OutOfRange, match="the authority expires before that"):
        authority.issue_client("x", 9, days=11, now=late)
    assert authority.issue_client("x", 9, now=late).who.not_after == authority.not_after


def test_an_authority_issues_nothing_before_its_time(authority: Authority) -> None:
    with pytest.raises(InputError, match="earlier than the authority was made"):
        authority.issue_client("x", 9, days=1, now=TODAY - 2 * DAY)


def test_renewing_changes_key_and_serial_and_nothing_else(authority: Authority) -> None:
    old = load_identity(beside(authority, "hospital-3"), TODAY)
    (beside(authority, "hospital-3") / "notes.txt").write_text("ours")
    authority.renew("hospital-3", now=TODAY + 300 * DAY)
    new = load_identity(beside(authority, "hospital-3"), TODAY + 600 * DAY)
    assert (new.name, new.roles, new.m, new.hosts) == (old.name, old.roles, old.m, old.hosts)
    assert new.serial != old.serial and new.key != old.key
    assert (beside(authority, "hospital-3") / "notes.txt").read_text() == "ours"


def test_renewing_makes_a_folder_again_that_was_handed_away(authority: Authority) -> None:
    shutil.rmtree(beside(authority, "hospital-3"))
    authority.renew("hospital-3", now=TODAY)
    assert load_identity(beside(authority, "hospital-3"), TODAY).m == 3


def test_an_unknown_name_gets_the_nearest(authority: Authority) -> None:
    for command in (authority.renew, authority.revoke):
        with pytest.raises(UnknownName, match="Did you mean 'hospital-3'"):
            command("hospitl-3")


def test_revoking_reaches_every_folder_and_starts_an_epoch(authority: Authority) -> None:
    serial = load_identity(beside(authority, "hospital-3"), TODAY).serial
    changed = {one.who.name: one.files for one in authority.revoke("hospital-3", TODAY)}
    assert changed == {
        "server": ("crl.pem",),
        "hospital-4": ("crl.pem", "sealing.json"),
        "judge": ("crl.pem", "sealing.json"),
        "boss": ("crl.pem",),
    }
    assert all(Revocations(beside(authority, name) / "crl.pem").is_revoked(serial) for name in changed)
    assert epochs(authority, "hospital-4") == epochs(authority, "judge") == [1, 2]
    assert epochs(authority, "hospital-3") == [1]
    assert states(authority)["hospital-3"] == "revoked"
    assert [one.state for one in holders(beside(authority, "hospital-3"), TODAY)] == ["revoked"]


def test_revoking_one_without_the_secret_starts_no_epoch(authority: Authority) -> None:
    authority.revoke("boss", TODAY)
    assert authority.epoch() == 1


def test_revoking_takes_replaced_certificates_too(authority: Authority) -> None:
    old = load_identity(beside(authority, "hospital-3"), TODAY).serial
    new = authority.renew("hospital-3", now=TODAY).who.serial
    authority.revoke("hospital-3", TODAY)
    listed = Revocations(beside(authority, "server") / "crl.pem")
    assert listed.is_revoked(old) and listed.is_revoked(new)


def test_revoking_again_changes_nobodys_epoch(authority: Authority) -> None:
    authority.revoke("hospital-3", TODAY)
    authority.revoke("hospital-3", TODAY)
    assert authority.epoch() == 2


def test_a_revoked_holder_is_not_renewed_but_its_number_is_free(authority: Authority) -> None:
    authority.revoke("hospital-3", TODAY)
    with pytest.raises(InputError, match="hospital-3 is revoked"):
        authority.renew("hospital-3", now=TODAY)
    assert authority.issue_client("hospital-3b", 3, now=TODAY).who.m == 3
    assert epochs(authority, "hospital-3b") == [1, 2]


def test_rotating_gives_every_client_the_new_secret_and_leaves_the_old(authority: Authority) -> None:
    before = load_epochs(beside(authority, "hospital-3"))
    changed = authority.rotate(TODAY)
    after = load_epochs(beside(authority, "hospital-3"))
    assert {one.who.name for one in changed} == {"hospital-3", "hospital-4", "judge"}
    assert {one.files for one in changed} == {("sealing.json",)}
    assert (after.current, after.secrets[1]) == (2, before.secrets[1]) and after.secrets[2] != after.secrets[1]
    assert not (beside(authority, "server") / "sealing.json").exists()


def test_what_is_rotated_for_a_client_whose_folder_was_handed_away_waits_for_it(authority: Authority) -> None:
    shutil.rmtree(beside(authority, "hospital-3"))
    authority.rotate(TODAY)
    assert [path.name for path in beside(authority, "hospital-3").iterdir()] == ["sealing.json"]


class Killed(BaseException):
    """The process is gone."""


def killed_at(flush: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process dies when it flushes to the disk for the n-th time."""
    left, real = iter(range(flush)), os.fsync

    def flushing(descriptor: int) -> None:
        if next(left, None) is None:
            raise Killed
        real(descriptor)

    monkeypatch.setattr(os, "fsync", flushing)


@pytest.mark.parametrize("flush", range(0, 30, 3))
def test_a_killed_revocation_is_finished_by_giving_it_again(
    authority: Authority, flush: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    serial = load_identity(beside(authority, "hospital-3"), TODAY).serial
    killed_at(flush, monkeypatch)
    with pytest.raises(Killed):
        authority.revoke("hospital-3", TODAY)
    monkeypatch.undo()
    again = open_authority(authority.folder)
    again.revoke("hospital-3", TODAY)
    assert again.epoch() == 2 and epochs(authority, "hospital-4") == [1, 2]
    assert all(Revocations(beside(authority, name) / "crl.pem").is_revoked(serial) for name in ("server", "judge"))


@pytest.mark.parametrize(("flush", "known"), [(0, False), (1, True), (4, True), (8, True)])
def test_a_killed_issue_leaves_no_folder_and_no_certificate_that_cannot_be_revoked(
    authority: Authority, flush: int, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_at(flush, monkeypatch)
    with pytest.raises(Killed):
        authority.issue_client("clinic", 9, now=TODAY)
    monkeypatch.undo()
    assert not beside(authority, "clinic").exists()
    assert ("clinic" in states(authority)) is known
    if known:
        authority.renew("clinic", now=TODAY)
    else:
        authority.issue_client("clinic", 9, now=TODAY)
    assert load_identity(beside(authority, "clinic"), TODAY).m == 9


def test_a_folder_appears_by_one_rename(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    def dying(*paths: object) -> None:
        raise Killed

    monkeypatch.setattr(os, "rename", dying)
    with pytest.raises(Killed):
        authority.issue_client("clinic", 9, now=TODAY)
    assert not beside(authority, "clinic").exists()


def test_a_full_disk_leaves_nothing_behind(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    before = snapshot(authority.folder.parent)
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OutputError, match="No space left on device"):
        authority.issue_client("clinic", 9, now=TODAY)
    monkeypatch.undo()
    after = snapshot(authority.folder.parent)
    after.pop("authority/.lock", None), before.pop("authority/.lock", None)
    assert after == before


def test_what_a_killed_process_left_is_swept(authority: Authority) -> None:
    left = authority.folder.parent / ".splitrelay-clinic-dead"
    left.mkdir()
    (left / "key.pem").write_text("x")
    authority.issue_client("clinic", 9, now=TODAY)
    assert not left.exists()


def test_every_error_of_a_damaged_register_is_one_of_ours(authority: Authority) -> None:
    for content in ("", "[]", "{", '{"consortium": 1, "list_number": "x", "issued": 3}', '{"issued": [{}]}'):
        (authority.folder / "register.json").write_text(content)
        with pytest.raises(SplitrelayError, match=r"register\.json is damaged"):
            authority.register()

"""A client opens the halves of a run through rotations, repeated and skipped visits, and no forged or old ones."""

import shutil
from pathlib import Path

import pytest

from splitrelay.security.authority import Authority
from splitrelay.security.encryption import MissingVisit, OldHalf, SecretUnavailable, TamperedHalf, WrongEpoch
from splitrelay.security.sealing_session import Sealer
from tests.support.error_fields import expect_error
from tests.support.key_folders import TODAY, consortium, copied


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return consortium(tmp_path_factory.mktemp("keys"), now=TODAY)


@pytest.fixture
def authority(issued: Authority, tmp_path: Path) -> Authority:
    return copied(issued, tmp_path)


def make_sealer(authority: Authority, name: str) -> Sealer:
    return Sealer(authority.folder.parent / name, "9f")


def test_half_can_be_opened_by_clients_and_evaluator(authority: Authority) -> None:
    blob = make_sealer(authority, "hospital-3").seal(b"half", visit=1, fence=1)
    for name in ("hospital-4", "judge"):
        assert make_sealer(authority, name).unseal(blob, visit=1, fence=1) == b"half"


def test_half_cannot_be_opened_by_server_or_observer(authority: Authority) -> None:
    blob = make_sealer(authority, "hospital-3").seal(b"half", visit=1, fence=1)
    for name in ("server", "boss"):
        with expect_error(SecretUnavailable, what=f"{name}/sealing.json", hint="splitrelay keys issue"):
            make_sealer(authority, name).unseal(blob, visit=1, fence=1)


def test_new_epoch_is_used_without_restart(authority: Authority) -> None:
    first, second = make_sealer(authority, "hospital-3"), make_sealer(authority, "hospital-4")
    before = first.seal(b"half", visit=1, fence=1)
    authority.rotate(TODAY)
    assert second.unseal(before, visit=1, fence=1) == b"half"
    after = second.seal(b"next", visit=2, fence=2)
    assert first.unseal(after, visit=2, fence=2) == b"next"
    assert (first.get_min_epoch(1), first.get_min_epoch(2), first.get_min_epoch(9)) == (1, 2, 2)


def test_revoked_client_cannot_open_or_forge_halves(authority: Authority, tmp_path: Path) -> None:
    shutil.copytree(authority.folder.parent / "hospital-3", tmp_path / "stolen")
    out, stays = Sealer(tmp_path / "stolen", "9f"), make_sealer(authority, "hospital-4")
    authority.revoke("hospital-3", TODAY)
    mine = stays.seal(b"half", visit=5, fence=8)
    with pytest.raises(WrongEpoch):
        out.unseal(mine, visit=5, fence=8)
    stays.confirm_own(mine)
    with pytest.raises(WrongEpoch) as error:
        stays.unseal(out.seal(b"forged", visit=6, fence=9), visit=6, fence=9)
    assert error.value.value == 1


def test_repeated_visit_can_start_from_half_of_old_epoch(authority: Authority) -> None:
    client = make_sealer(authority, "hospital-4")
    start = make_sealer(authority, "hospital-3").seal(b"half", visit=4, fence=7)
    authority.rotate(TODAY)
    client.unseal(start, visit=4, fence=7)
    client.seal(b"lost", visit=5, fence=8)
    assert client.unseal(start, visit=4, fence=7) == b"half"


def test_uncommitted_half_does_not_raise_minimum_epoch(authority: Authority, tmp_path: Path) -> None:
    """One client has the new epoch, but its visit was skipped; the others continue with the old epoch."""
    shutil.copytree(authority.folder.parent / "hospital-3", tmp_path / "late")
    late, client = Sealer(tmp_path / "late", "9f"), make_sealer(authority, "hospital-4")
    authority.rotate(TODAY)
    client.seal(b"lost", visit=5, fence=8)
    assert client.unseal(late.seal(b"half", visit=6, fence=9), visit=6, fence=9) == b"half"


def test_half_older_than_own_commit_raises_error(authority: Authority) -> None:
    before, client = make_sealer(authority, "hospital-3"), make_sealer(authority, "hospital-4")
    start = before.seal(b"half", visit=4, fence=7)
    client.unseal(start, visit=4, fence=7)
    client.confirm_own(client.seal(b"next", visit=5, fence=8))
    with pytest.raises(OldHalf) as error:
        client.unseal(start, visit=4, fence=7)
    assert error.value.value == 4
    with pytest.raises(OldHalf):
        client.begin()


def test_half_with_other_fence_than_committed_raises_error(authority: Authority) -> None:
    before, client = make_sealer(authority, "hospital-3"), make_sealer(authority, "hospital-4")
    cancelled, committed = (before.seal(b"half", visit=4, fence=fence) for fence in (6, 7))
    client.unseal(committed, visit=4, fence=7)
    with pytest.raises(OldHalf):
        client.unseal(cancelled, visit=4, fence=6)
    with pytest.raises(OldHalf):
        client.unseal(before.seal(b"half", visit=5, fence=5), visit=5, fence=5)


def test_uncommitted_half_can_return_with_other_fence(authority: Authority) -> None:
    before, client = make_sealer(authority, "hospital-3"), make_sealer(authority, "hospital-4")
    lost, again = (before.seal(b"half", visit=4, fence=fence) for fence in (7, 9))
    client.unseal(lost, visit=4, fence=7, committed=False)
    assert client.unseal(again, visit=4, fence=9) == b"half"


def test_half_without_own_committed_visit_raises_error(authority: Authority) -> None:
    """The server gave visit 5 to two clients and continues with the half of the other one."""
    folder = authority.folder.parent
    left, other = Sealer(folder / "hospital-3", "9f", 3), Sealer(folder / "hospital-4", "9f", 4)
    mine = left.seal(b"mine", visit=5, fence=8)
    left.confirm_own(mine)
    theirs = other.seal(b"theirs", visit=5, fence=9)
    with pytest.raises(OldHalf):
        left.unseal(theirs, visit=5, fence=9)
    other.unseal(theirs, visit=5, fence=9)
    with pytest.raises(MissingVisit):
        left.unseal(other.seal(b"theirs", visit=6, fence=10), visit=6, fence=10)
    other = Sealer(folder / "hospital-4", "9f", 4)
    other.unseal(mine, visit=5, fence=8)
    assert left.unseal(other.seal(b"next", visit=6, fence=10), visit=6, fence=10) == b"next"


def test_half_that_lists_visits_later_than_its_own_raises_error(authority: Authority) -> None:
    """Such a list would hide from the other clients that their own visits are missing."""
    writer, client = Sealer(authority.folder.parent / "hospital-3", "9f", 3), make_sealer(authority, "hospital-4")
    writer._history = {4: 10**15}
    with pytest.raises(TamperedHalf):
        client.unseal(writer.seal(b"half", visit=5, fence=8), visit=5, fence=8)

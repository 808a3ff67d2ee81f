"""Does a client take over halves from visit to visit, through rotations, replays and skips, and no forged one?"""

import shutil
from pathlib import Path

import pytest

from splitrelay.errors import InputError
from splitrelay.security.authority import Authority
from splitrelay.security.encryption import LeftOut, OldHalf
from splitrelay.security.sealing_keys import WrongEpoch
from splitrelay.security.sealing_session import Sealer
from tests.support.key_folders import TODAY, consortium, copied


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return consortium(tmp_path_factory.mktemp("keys"), now=TODAY)


@pytest.fixture
def authority(issued: Authority, tmp_path: Path) -> Authority:
    return copied(issued, tmp_path)


def sealer(authority: Authority, name: str) -> Sealer:
    return Sealer(authority.folder.parent / name, "9f")


def test_a_half_goes_from_client_to_client_and_to_the_evaluator(authority: Authority) -> None:
    blob = sealer(authority, "hospital-3").seal(b"half", visit=1, fence=1)
    for name in ("hospital-4", "judge"):
        assert sealer(authority, name).unseal(blob, visit=1, fence=1) == b"half"


def test_neither_server_nor_observer_can_open_it(authority: Authority) -> None:
    blob = sealer(authority, "hospital-3").seal(b"half", visit=1, fence=1)
    for name in ("server", "boss"):
        with pytest.raises(InputError, match=r"sealing\.json is missing"):
            sealer(authority, name).unseal(blob, visit=1, fence=1)


def test_a_new_epoch_is_seen_without_restart(authority: Authority) -> None:
    first, second = sealer(authority, "hospital-3"), sealer(authority, "hospital-4")
    before = first.seal(b"half", visit=1, fence=1)
    authority.rotate(TODAY)
    assert second.unseal(before, visit=1, fence=1) == b"half"
    after = second.seal(b"next", visit=2, fence=2)
    assert first.unseal(after, visit=2, fence=2) == b"next"
    assert (first.least_epoch(1), first.least_epoch(2), first.least_epoch(9)) == (1, 2, 2)


def test_a_revoked_client_reads_and_forges_nothing_more(authority: Authority, tmp_path: Path) -> None:
    shutil.copytree(authority.folder.parent / "hospital-3", tmp_path / "stolen")
    out, stays = Sealer(tmp_path / "stolen", "9f"), sealer(authority, "hospital-4")
    authority.revoke("hospital-3", TODAY)
    mine = stays.seal(b"half", visit=5, fence=8)
    with pytest.raises(WrongEpoch, match="sealed in epoch 2; this client has 1"):
        out.unseal(mine, visit=5, fence=8)
    stays.committed(mine)
    with pytest.raises(WrongEpoch, match="an epoch that is over"):
        stays.unseal(out.seal(b"forged", visit=6, fence=9), visit=6, fence=9)


def test_a_visit_is_replayed_from_a_half_of_the_epoch_before(authority: Authority) -> None:
    client = sealer(authority, "hospital-4")
    start = sealer(authority, "hospital-3").seal(b"half", visit=4, fence=7)
    authority.rotate(TODAY)
    client.unseal(start, visit=4, fence=7)
    client.seal(b"lost", visit=5, fence=8)
    assert client.unseal(start, visit=4, fence=7) == b"half"


def test_a_half_that_was_never_committed_binds_nobody(authority: Authority, tmp_path: Path) -> None:
    """The new epoch reached one client, whose visit was skipped; the others go on in the old one meanwhile."""
    shutil.copytree(authority.folder.parent / "hospital-3", tmp_path / "late")
    late, client = Sealer(tmp_path / "late", "9f"), sealer(authority, "hospital-4")
    authority.rotate(TODAY)
    client.seal(b"lost", visit=5, fence=8)
    assert client.unseal(late.seal(b"half", visit=6, fence=9), visit=6, fence=9) == b"half"


def test_after_its_own_commit_a_client_takes_nothing_older(authority: Authority) -> None:
    before, client = sealer(authority, "hospital-3"), sealer(authority, "hospital-4")
    start = before.seal(b"half", visit=4, fence=7)
    client.unseal(start, visit=4, fence=7)
    client.committed(client.seal(b"next", visit=5, fence=8))
    with pytest.raises(OldHalf, match=r"older than one that was committed; needs visit 5 or later; got 4"):
        client.unseal(start, visit=4, fence=7)
    with pytest.raises(OldHalf):
        client.begin()


def test_of_one_visit_there_is_one_half(authority: Authority) -> None:
    before, client = sealer(authority, "hospital-3"), sealer(authority, "hospital-4")
    given_up, kept = (before.seal(b"half", visit=4, fence=fence) for fence in (6, 7))
    client.unseal(kept, visit=4, fence=7)
    with pytest.raises(OldHalf, match=r"visit 4 is not the one that was committed; needs fence 7; got fence 6"):
        client.unseal(given_up, visit=4, fence=6)
    with pytest.raises(OldHalf, match=r"needs fence 7 or later"):
        client.unseal(before.seal(b"half", visit=5, fence=5), visit=5, fence=5)


def test_what_came_straight_from_a_peer_may_come_again_under_another_fence(authority: Authority) -> None:
    before, client = sealer(authority, "hospital-3"), sealer(authority, "hospital-4")
    lost, again = (before.seal(b"half", visit=4, fence=fence) for fence in (7, 9))
    client.unseal(lost, visit=4, fence=7, committed=False)
    assert client.unseal(again, visit=4, fence=9) == b"half"


def test_a_client_whose_committed_visit_is_missing_from_the_half_refuses_it(authority: Authority) -> None:
    """The server gave visit 5 to two clients, and goes on from the other one's."""
    folder = authority.folder.parent
    left, other = Sealer(folder / "hospital-3", "9f", 3), Sealer(folder / "hospital-4", "9f", 4)
    mine = left.seal(b"mine", visit=5, fence=8)
    left.committed(mine)
    theirs = other.seal(b"theirs", visit=5, fence=9)
    with pytest.raises(OldHalf):
        left.unseal(theirs, visit=5, fence=9)
    other.unseal(theirs, visit=5, fence=9)
    with pytest.raises(LeftOut, match="not been through visit 5"):
        left.unseal(other.seal(b"theirs", visit=6, fence=10), visit=6, fence=10)
    other = Sealer(folder / "hospital-4", "9f", 4)
    other.unseal(mine, visit=5, fence=8)
    assert left.unseal(other.seal(b"next", visit=6, fence=10), visit=6, fence=10) == b"next"

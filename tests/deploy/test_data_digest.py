"""The digest of a client's data: what it depends on, what the server pins, and what it refuses."""

import hashlib
import hmac
import json
import shutil
import stat
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from splitrelay.data.images import ImageSet
from splitrelay.deploy.client_data import DataDigests, compute_digest, describe_data
from splitrelay.deploy.client_program import ClientOptions, ClientProgram
from splitrelay.deploy.deployed_run import ClientSizesFile
from splitrelay.deploy.handshake import AgreedSpec
from splitrelay.errors import InputError
from splitrelay.network.grpc_channel import ServerRefused
from splitrelay.randomness import Purpose, rng
from splitrelay.security.authority import create_authority, open_authority
from tests.support.bare_server import wait_until
from tests.support.deployment import PATIENCE, LocalDeployment, remove_times, simulate_run, small_spec

TWO = ("M=2", "C=9", "R=2")
SALT = bytes(range(32))


def images(seed: int = 0, shape: tuple[int, int, int] = (1, 2, 6)) -> ImageSet:
    draw = rng(seed, Purpose.INSTANCES)
    x = draw.integers(0, 256, (8, *shape), dtype=np.uint8)
    return ImageSet(x, np.arange(8) % 3, ("a", "b", "c"), (0.5,) * shape[0], (1.0,) * shape[0])


def digest_of(data: ImageSet, **changed: Any) -> bytes:
    how: dict[str, Any] = {"salt": SALT, "secret": b"k" * 32, "client": 3, **changed}
    return compute_digest(data, **how)


def other_data(source: Path, to: Path) -> Path:
    """As many images as in the source, one pixel of one image changed."""
    with np.load(source) as file:
        x, y = file["x"].copy(), file["y"]
    x.reshape(len(x), -1)[0, 0] ^= 1
    np.savez(to, x=x, y=y)
    return to


def own_file(folder: Path, m: int) -> Path:
    return folder / "data" / f"client-000{m}" / "data.npz"


# The digest


def test_everything_that_is_named_changes_the_digest() -> None:
    data, flipped = images(), images()
    flipped.x[7, 0, 1, 5] ^= 1
    relabelled = ImageSet(data.x, (data.y + 1) % 3, data.classes, data.mean, data.std)
    reshaped = ImageSet(data.x.reshape(8, 1, 3, 4), data.y, data.classes, data.mean, data.std)
    found = [
        digest_of(data),
        digest_of(data, salt=bytes(32)),
        digest_of(data, secret=b""),
        digest_of(data, client=4),
        digest_of(data, test=True),
        *map(digest_of, (flipped, relabelled, reshaped)),
    ]
    assert len(set(found)) == len(found) and {len(one) for one in found} == {32}


def test_the_layout_in_memory_does_not_change_the_digest() -> None:
    data = images()
    strided = ImageSet(np.asfortranarray(data.x), data.y, data.classes, data.mean, data.std)
    assert not strided.x.flags.c_contiguous and digest_of(strided) == digest_of(data)


def test_the_digest_is_the_documented_one() -> None:
    """Worked out with hashlib alone, for another program that has to make the same."""
    data = images()
    head = b"splitrelay data digest 1\0train\0" + SALT + (3).to_bytes(4, "little") + (8).to_bytes(8, "little")
    head += b"".join(side.to_bytes(4, "little") for side in (1, 2, 6))
    content = head + data.x.tobytes() + data.y.astype("<i8").tobytes()
    assert digest_of(data) == hmac.new(b"k" * 32, content, hashlib.sha256).digest()


def test_new_epochs_and_renewed_keys_keep_the_digest(tmp_path: Path) -> None:
    authority = create_authority(tmp_path / "authority", "tests")
    authority.issue_client("one", 3)
    authority.issue_client("gone", 4)
    first = DataDigests(3, tmp_path / "one").find(SALT, images())
    assert first != DataDigests(3, None).find(SALT, images())
    authority.revoke("gone")
    open_authority(tmp_path / "authority").renew("one")
    assert DataDigests(3, tmp_path / "one").find(SALT, images()) == first
    shutil.rmtree(tmp_path / "one")
    open_authority(tmp_path / "authority").renew("one")
    assert DataDigests(3, tmp_path / "one").find(SALT, images()) == first


def test_a_digest_is_computed_once_for_each_salt() -> None:
    digests, data = DataDigests(3, None), images()
    assert digests.find(SALT, data) is digests.find(SALT, data)
    assert digests.find(bytes(32), data) != digests.find(SALT, data)
    assert digests.find(b"", data) == b""  # a server that sends no salt gets no digest


def test_a_test_set_beside_the_training_data_is_part_of_the_digest() -> None:
    plain, both = (DataDigests(3, None).find(SALT, images(), test) for test in (None, images(1)))
    assert plain != both != DataDigests(3, None).find(SALT, images(), images(2))


# At the server


def test_arrivals_are_recorded_with_software_processor_and_digest(tmp_path: Path) -> None:
    stage = LocalDeployment(small_spec(tmp_path, *TWO), tmp_path, keys=True)
    expected = simulate_run(stage.spec, tmp_path / "simulated")
    for m in (0, 1):
        stage.join(m)
    assert remove_times(stage.play()) == remove_times(expected.read_rows())
    arrived = {event["client"]: event for event in stage.events("arrived")}
    assert {event["software"].split()[0] for event in arrived.values()} == {"splitrelay"}
    assert all(event["cpu"] and len(bytes.fromhex(event["digest"])) == 32 for event in arrived.values())
    assert arrived[0]["digest"] != arrived[1]["digest"]
    known = ClientSizesFile(tmp_path / "run" / "relay" / "clients.json").read_records()
    assert {m: one.digest for m, one in known.items()} == {m: arrived[m]["digest"] for m in (0, 1)}
    assert all(one.software and one.cpu and one.arrivals and one.first_arrival for one in known.values())


def test_the_salt_is_private_and_the_same_after_a_restart(tmp_path: Path) -> None:
    spec, salts = small_spec(tmp_path, *TWO), []
    for start in range(2):
        stage = LocalDeployment(spec, tmp_path)
        for m in (0, 1) if start == 0 else ():
            stage.join(m)
        stage.play()
        salts.append(stage.serving.network.context.terms.salt)
    file = tmp_path / "run" / "relay" / "salt"
    assert salts[0] == salts[1] and len(salts[0]) == 32
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_lost_salt_is_an_error_once_digests_are_pinned(tmp_path: Path) -> None:
    stage = LocalDeployment(small_spec(tmp_path, *TWO), tmp_path)
    for m in (0, 1):
        stage.join(m)
    stage.play()
    (tmp_path / "run" / "relay" / "salt").unlink()
    with pytest.raises(InputError) as caught:
        LocalDeployment(stage.spec, tmp_path).play()
    assert "salt" in caught.value.what and caught.value.hint


def late_client(stage: LocalDeployment, make: Callable[[], ClientOptions]) -> list[Any]:
    """After the first round one more program joins, with this wish; how it ended."""
    found: list[Any] = []

    def look(r: int, afresh: bool) -> None:
        if r == 1:
            try:
                wish = replace(make(), agreed=AgreedSpec(stage.spec))
                found.append(ClientProgram(wish, stage.said.append).run())
            except ServerRefused as error:
                found.append(error)

    stage.serving.pace.record_row = look  # type: ignore[method-assign]
    return found


@pytest.mark.parametrize("keys", [False, True])
def test_other_data_with_the_same_count_are_refused_during_a_run(keys: bool, tmp_path: Path) -> None:
    stage = LocalDeployment(small_spec(tmp_path, *TWO), tmp_path, keys=keys)
    wrong = other_data(own_file(tmp_path, 0), tmp_path / "wrong.npz")
    folder = tmp_path / "client-0" if keys else None
    late = late_client(stage, lambda: ClientOptions(f"127.0.0.1:{stage.serving.port}", 0, wrong, folder))
    for m in (0, 1):
        stage.join(m)
    stage.play()
    (error,) = late
    assert isinstance(error, ServerRefused) and error.final and error.exit_code == 2
    assert "data" in str(error) and "first took part" in str(error)


def test_until_the_run_begins_data_with_the_same_count_may_change(tmp_path: Path) -> None:
    stage = LocalDeployment(small_spec(tmp_path, *TWO), tmp_path)
    expected = simulate_run(stage.spec, tmp_path / "simulated")
    wrong = other_data(own_file(tmp_path, 0), tmp_path / "wrong.npz")

    def arrive() -> None:
        stage.join(0, data=wrong)
        wait_until(lambda: 0 in stage.serving.network.connections.get_clients())
        stage.clients[0].stop.set()
        wait_until(lambda: 0 in stage.words)
        stage.join(0)
        wait_until(lambda: 0 in stage.serving.network.connections.get_clients())
        stage.join(1)

    stage.serving.on_listening = lambda port: (stage.listening.set(), threading.Thread(target=arrive).start())  # type: ignore[func-returns-value,assignment]
    stage.play()
    assert stage.serving.directory.model.read_bytes() == expected.model.read_bytes()
    first, second = [event["digest"] for event in stage.events("arrived") if event["client"] == 0]
    assert first != second
    assert ClientSizesFile(tmp_path / "run" / "relay" / "clients.json").read_records()[0].digest == second


def test_another_test_set_is_refused_during_a_run(tmp_path: Path) -> None:
    stage = LocalDeployment(small_spec(tmp_path, *TWO, "route=peer-to-peer"), tmp_path, keys=True)
    test = tmp_path / "data" / "test.npz"
    wrong = other_data(test, tmp_path / "wrong.npz")
    late = late_client(
        stage,
        lambda: ClientOptions(
            f"127.0.0.1:{stage.serving.port}", 0, own_file(tmp_path, 0), tmp_path / "client-0", test=wrong,
            keep=tmp_path / "other",
        ),
    )  # fmt: skip
    for m in (0, 1):
        more = {"test": test, "keep": tmp_path / "model"} if m == stage.spec.evaluator else {}
        stage.join(m, **more)
    stage.play()
    (error,) = late
    assert isinstance(error, ServerRefused) and error.final and not (tmp_path / "other").exists()


# The file of the clients


def test_a_census_of_an_earlier_version_is_read_and_pinned_at_the_next_arrival(tmp_path: Path) -> None:
    stage = LocalDeployment(small_spec(tmp_path, *TWO), tmp_path)
    for m in (0, 1):
        stage.join(m)
    stage.play()
    file = tmp_path / "run" / "relay" / "clients.json"
    census = ClientSizesFile(file)
    sizes = {m: len(indices) for m, indices in enumerate(stage.partition.indices)}
    assert census.read() == sizes
    file.write_text(json.dumps(sizes))
    assert census.read() == sizes and {one.digest for one in census.read_records().values()} == {""}
    (tmp_path / "run" / "model.safetensors").unlink()
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    shutil.rmtree(tmp_path / "run" / "relay" / "visits", ignore_errors=True)
    (tmp_path / "run" / "rounds.jsonl").unlink()
    again = LocalDeployment(stage.spec, tmp_path)
    for m in (0, 1):
        again.join(m)
    again.play()
    assert all(one.digest for one in census.read_records().values()) and census.read() == sizes


@pytest.mark.parametrize("text", ["[1, 2]", "{", '{"0": {"samples": "many"}}', '{"0": {"unknown": 1}}', '{"x": 1}'])
def test_a_damaged_census_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "clients.json").write_text(text)
    with pytest.raises(InputError) as caught:
        ClientSizesFile(tmp_path / "clients.json").read_records()
    assert "clients.json" in caught.value.what and caught.value.hint


# join --check


def test_a_check_prints_count_shape_classes_and_digest(tmp_path: Path) -> None:
    stage = LocalDeployment(small_spec(tmp_path, *TWO), tmp_path, keys=True)
    checked: list[str] = []

    def check(port: int) -> None:
        stage.listening.set()
        options = {"agreed": AgreedSpec(stage.spec), "check": True, "patience": PATIENCE}
        wish = ClientOptions(f"127.0.0.1:{port}", 0, own_file(tmp_path, 0), tmp_path / "client-0", **options)
        checked.append(ClientProgram(wish, stage.said.append).run())
        for m in (0, 1):
            stage.join(m)

    def in_thread(port: int) -> None:
        threading.Thread(target=check, args=(port,), daemon=True).start()

    stage.serving.on_listening = in_thread
    stage.play()
    with np.load(own_file(tmp_path, 0)) as file:
        y = file["y"]
    (words,) = checked
    digest = next(event["digest"] for event in stage.events("arrived") if event["client"] == 0)
    assert f"{len(y)} images of shape 1 x 8 x 8" in words and digest[:12] in words and digest not in words
    assert all(f"{label}: {(y == label).sum()}" in words for label in np.unique(y))


def test_data_are_described_in_short_printable_lines() -> None:
    classes = ("red\x1b[31m", *(f"class number {c}" for c in range(1, 60)))
    y = np.arange(50, dtype=np.int64)
    data = ImageSet(np.zeros((50, 1, 2, 2), dtype=np.uint8), y, classes, (0.5,), (1.0,))
    text = describe_data("client 3", data, b"\x01" * 32)
    assert text.replace("\n", "").isprintable() and max(map(len, text.splitlines())) <= 80
    assert len(text.splitlines()) < 20

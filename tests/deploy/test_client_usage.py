"""Is what clients are said to have paid what they paid, over restarts of either side?"""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from splitrelay.cli.main import app
from splitrelay.deploy.client_usage import ClientUsage, Usage, UsageLog, UsageTimer, read_usage
from splitrelay.deploy.status_report import status
from splitrelay.errors import InputError
from splitrelay.network.codec import OutsideLimits, decode, encode
from splitrelay.network.messages import UsageReport
from splitrelay.network.socket_counters import SocketCounters, SocketTraffic
from tests.support.deployment import LocalDeployment, small_spec
from tests.support.error_fields import expect_error


def test_what_is_not_waiting_is_computing() -> None:
    waited = iter([1.0, 6.0, 6.0])
    usage = UsageTimer(lambda: next(waited))
    with usage.visit():
        pass
    paid = usage.build_report()
    assert (paid.visits, paid.waiting, paid.computing) == (1, 5.0, 0.0)


def test_a_program_is_counted_once_and_the_next_one_added() -> None:
    account = ClientUsage()
    for paid in (UsageReport(7, 1, 1.0, 2.0, 50), UsageReport(7, 2, 3.0, 4.0, 60), UsageReport(8, 1, 10.0, 20.0, 40)):
        account = account.add_report(paid)
    assert account.total == Usage(3, 13.0, 24.0, 60)


def test_a_server_that_restarts_goes_on_counting(tmp_path: Path) -> None:
    first = UsageLog(
        tmp_path / "paid.json", lambda: {0: UsageReport(7, 2, 3.0, 4.0, 60)}, lambda: {0: SocketTraffic(10, 100, 200)}
    )
    first.save()
    first.save()
    later = UsageLog(
        tmp_path / "paid.json", lambda: {0: UsageReport(7, 3, 5.0, 6.0, 60)}, lambda: {0: SocketTraffic(1, 1, 2)}
    )
    assert later.get_totals() == {0: Usage(3, 5.0, 6.0, 60, 11, 101, 202)}


def test_a_system_that_does_not_count_says_so(tmp_path: Path) -> None:
    ledger = UsageLog(tmp_path / "paid.json", dict, lambda: {0: SocketTraffic(4)})
    assert ledger.build_row()["socket_bytes_up"] is None and ledger.build_row()["socket_messages"] == 4


def test_a_lost_link_stays_in_the_account() -> None:
    class Line:
        m, peer, messages, descriptor = 3, "ipv4:127.0.0.1:9", 5, -1
        bytes: tuple[int, int] | None = (10, 20)

    meters = SocketCounters()
    meters.add_ended(Line())
    assert meters.sum_by_client([Line()]) == {3: SocketTraffic(10, 20, 40)}


@pytest.mark.parametrize(
    ("paid", "key", "value"),
    [
        (UsageReport(1, 1, float("nan"), 0.0, 1), "waiting", "nan"),
        (UsageReport(1, 1, 0.0, -1.0, 1), "computing", -1.0),
        (UsageReport(1, 1, 0.0, 0.0, 2**60), "memory", 2**60),
    ],
)
def test_numbers_that_nobody_can_have_paid_are_refused(paid: UsageReport, key: str, value: object) -> None:
    with expect_error(OutsideLimits, what=key, value=value):
        decode(encode(paid))


def test_the_record_and_the_status_tell_what_clients_paid(tmp_path: Path) -> None:
    spec = small_spec(tmp_path)
    stage = LocalDeployment(spec, tmp_path, keys=True)
    for m in stage.partition.clients:
        stage.join(m)
    last = stage.play()[-1]
    told = status(stage.serving)
    assert told["socket_bytes_up"] > last["bytes_up"] and told["socket_bytes_down"] > last["bytes_down"]
    assert [one["visits"] for one in told["clients"]] == [spec.R] * spec.partition.M
    assert told["computing_seconds"] > 0 and told["waiting_seconds"] > 0
    assert 0 < last["socket_bytes_up"] <= told["socket_bytes_up"]
    saved = read_usage(tmp_path / "run" / "relay" / "paid.json")
    assert {m: account.total.visits for m, account in saved.items()} == dict.fromkeys(stage.partition.clients, spec.R)
    header = (tmp_path / "run" / "rounds.csv").read_text().splitlines()[0].split(",")
    assert {"socket_bytes_up", "waiting_seconds", "memory_bytes"} <= set(header)
    assert json.loads(stage.serving.report())["clients"][0]["memory_bytes"] > 10**7


# An account that cannot be read


DAMAGED = [
    b"", b"{", b"[1]", b"null", b'{"0": 1}', b'{"zero": {}}', b"\xff\xfe", b'{"0": {"past": {"cows": 1}}}',
    b'{"0": {"past": {}, "program": 1, "now": {"visits": "many"}}}',
    b'{"0": {"past": {"waiting_seconds": NaN}, "program": 1, "now": {}}}',
]  # fmt: skip


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_account_is_one_line_that_names_the_file(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "paid.json").write_bytes(content)
    with pytest.raises(InputError) as found:
        read_usage(tmp_path / "paid.json")
    assert str(tmp_path / "paid.json") in found.value.what and found.value.hint
    assert len(str(found.value).splitlines()) == 1


def test_the_cost_of_a_run_with_a_damaged_account_is_wrong_input(tmp_path: Path) -> None:
    spec = small_spec(tmp_path)
    (tmp_path / "run" / "relay").mkdir(parents=True)
    (tmp_path / "run" / "relay" / "paid.json").write_text("{")
    (tmp_path / "run" / "spec.toml").write_text(spec.to_toml())
    found = CliRunner().invoke(app, ["cost", "--measured", str(tmp_path / "run")]).exception
    assert isinstance(found, InputError) and "paid.json" in found.what


def test_a_server_sets_a_damaged_account_aside_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "run" / "relay").mkdir(parents=True)
    (tmp_path / "run" / "relay" / "paid.json").write_text("{")
    stage = LocalDeployment(small_spec(tmp_path, "R=1"), tmp_path)
    for m in stage.partition.clients:
        stage.join(m)
    stage.play()
    (event,) = stage.events("set-aside")
    assert event["file"].endswith("paid.json")
    assert (tmp_path / "run" / event["to"]).read_text() == "{"
    assert [line for line in stage.said if "paid.json" in line]
    assert sum(account.total.visits for account in read_usage(tmp_path / "run" / "relay" / "paid.json").values()) == 4

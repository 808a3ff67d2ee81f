"""The web server of the page: token, Host, headers, views as JSON, errors, and the stream of events."""

import base64
import gc
import http.client
import json
import math
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from splitrelay.reports.html_page import select_points
from splitrelay.web.server import SCRIPTS, STYLES, PageServer, StreamLimits
from splitrelay.web.source import PageSource
from tests.support.run_directories import row, write_run

HOSTILE = ["<script>alert(1)<b>", "x" * 200, "\u202eevil\u202c \u05d0\u05d1", "quote\"'&amp;"]
FAST = StreamLimits(pause=0.02, heartbeat=0.05, streams=2)


class Client:
    """Requests to a page server."""

    def __init__(self, server: PageServer) -> None:
        self.server, self.connections = server, ExitStack()

    def connect(self) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.server_port, timeout=300)
        self.connections.callback(connection.close)
        return connection

    def get(self, path: str, **headers: str) -> http.client.HTTPResponse:
        connection = self.connect()
        connection.putrequest("GET", path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        answer = connection.getresponse()
        self.connections.callback(answer.close)
        return answer

    def view(self, name: str, status: int = 200) -> dict[str, Any]:
        answer = self.get(f"/{self.server.token}/api/{name}")
        assert answer.status == status
        content: dict[str, Any] = json.loads(answer.read())
        return content

    def stream(self, **headers: str) -> http.client.HTTPResponse:
        return self.get(f"/{self.server.token}/events", **headers)


def unpack_lines(curves: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the lines of a view with their numbers as lists."""
    lines = [{**line, "x": curves["xs"][line["x"]]} for line in curves["lines"]]
    return [{name: text if name == "id" else unpack(text) for name, text in line.items()} for line in lines]


def unpack(text: str) -> list[float]:
    return [number for (number,) in struct.iter_unpack("<d", base64.b64decode(text))]


def read_event(stream: http.client.HTTPResponse) -> dict[str, str]:
    """Return the next event; comments do not count."""
    event: dict[str, str] = {}
    while True:
        line = stream.readline().decode().rstrip("\n")
        if not line and event:
            return event
        name, mark, value = line.partition(": ")
        if mark and name:
            event[name] = value


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    for seed in (1234, 666):
        write_run(tmp_path / f"ssl-{seed}", [0.1, 0.4, 0.8], f"seed={seed}", "C=2")
        write_run(tmp_path / f"fedavg-{seed}", [0.1, 0.2, 0.5], f"seed={seed}", "C=2", "algorithm=fedavg")
    with PageServer(PageSource(tmp_path), token="secret-token", limits=FAST) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        asking = Client(server)
        with asking.connections:
            yield asking
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    "path", ["/", "/wrong/", "/wrong/api/runs", "/secret-toke/api/runs", "/api/runs", "//api/runs"]
)
def test_a_request_without_the_token_is_refused(client: Client, path: str) -> None:
    answer = client.get(path)
    assert answer.status == 403
    assert b"ssl" not in answer.read()


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", "localhost:1", ""])
def test_a_request_with_another_host_is_refused(client: Client, host: str) -> None:
    answer = client.get(f"/{client.server.token}/api/runs", Host=host)
    assert answer.status == 421
    assert b"ssl" not in answer.read()


def test_the_names_of_this_host_are_accepted(client: Client) -> None:
    for host in client.server.hosts:
        assert client.get(f"/{client.server.token}/api/runs", Host=host).status == 200


def test_the_server_listens_on_the_loopback_interface_and_only_reads(client: Client) -> None:
    assert client.server.server_address[0] == "127.0.0.1"
    connection = client.connect()
    connection.request("POST", f"/{client.server.token}/api/runs", body=b"{}")
    assert connection.getresponse().status == 501


def test_every_answer_has_a_strict_policy_and_no_cookie(client: Client) -> None:
    for path in ("", "api/runs", "api/nothing", *(f"static/{name}" for name in (*SCRIPTS, *STYLES))):
        answer = client.get(f"/{client.server.token}/{path}")
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
        assert answer.headers["Referrer-Policy"] == "no-referrer" and answer.headers["Set-Cookie"] is None
        assert answer.status == (404 if path == "api/nothing" else 200)
        answer.read()


@pytest.mark.parametrize("path", ["static/../server.py", "static/%2e%2e/server.py", "static//etc/passwd", "static/"])
def test_other_files_are_not_served(client: Client, path: str) -> None:
    assert client.get(f"/{client.server.token}/{path}").status == 404


def test_the_page_asks_for_files_of_this_server_only(client: Client) -> None:
    text = client.get(f"/{client.server.token}/").read().decode()
    assert "http://" not in text and "https://" not in text and "<script>" not in text


def test_runs_curves_and_comparison_have_the_numbers_of_the_records(client: Client) -> None:
    listed = client.view("runs")
    runs = {run["name"]: run for run in listed["runs"]}
    assert {name: run["state"] for name, run in runs.items()} == dict.fromkeys(runs, "finished")
    assert runs["ssl-666"]["accuracy"] == pytest.approx(80.0)  # of the last fifth of the rounds
    assert len(listed["lines"]) == 2 and runs["ssl-666"]["line"] == runs["ssl-1234"]["line"]
    assert listed["first"] == list(listed["lines"])
    drawn = unpack_lines(client.view("curves?metric=test_accuracy&x=bytes"))
    assert [line["x"] for line in drawn] == [[0.0, 1.5, 3.0]] * 2
    assert sorted(line["y"][2] for line in drawn) == [50.0, 80.0] and drawn[0]["low"] == drawn[0]["y"]
    each = unpack_lines(client.view("curves?metric=test_loss&each=1"))
    assert len(each) == 4 and "low" not in each[0]
    lines = [runs[name]["line"] for name in ("fedavg-1234", "ssl-1234")]
    compared = client.view(f"compare?lines={','.join(lines)}")
    assert [entry["mean"] for entry in compared["rows"]] == [pytest.approx(30.0)] and compared["rows"][0]["n"] == 2


def test_a_missing_value_is_a_gap_and_a_long_line_keeps_its_extremes(tmp_path: Path, client: Client) -> None:
    values = [0.5, *([0.4, 0.6] * 5000)]
    values[1234], values[4321], values[7000] = 0.9, 0.1, math.nan
    write_run(tmp_path / "long", values, "C=1")
    client.server.source._until = 0.0
    line = next(one for one in unpack_lines(client.view("curves?each=1")) if len(one["x"]) > 3)
    assert 1000 < len(line["y"]) <= 2000 and (line["x"][0], line["x"][-1]) == (0, len(values) - 1)
    assert [(x, y) for x, y in zip(line["x"], line["y"], strict=True) if not 39 < y < 61] == [(1234, 90), (4321, 10)]
    (short,) = unpack_lines(client.view("curves?each=1&metric=train_loss&lines=" + line["id"]))
    assert math.isnan(short["y"][0])
    assert select_points(np.array([math.nan] * 9), 4).tolist() == [0, 8]


def test_a_run_has_its_settings_classes_and_commands(client: Client) -> None:
    number = next(run["id"] for run in client.view("runs")["runs"] if run["name"] == "ssl-666")
    run = client.view(f"run?id={number}")
    assert {"name": "seed", "value": "666"}.items() <= next(
        one for one in run["specs"] if one["name"] == "seed"
    ).items()
    assert run["classes"]["rounds"] == [0, 1, 2] and run["classes"]["values"][2] == [80.0, None, pytest.approx(20.0)]
    assert "splitrelay verify" in run["commands"][0]["text"] and "error" in run["partition"]


@pytest.mark.parametrize(
    "view",
    [
        "run?id=0",
        "run",
        "curves?x=apples",
        "compare",
        "bounds?case=round",
        "bounds?L=x",
        "partition?data=/etc",
        "partition?kind=round",
    ],
)
def test_a_wrong_question_has_an_answer_with_a_hint(client: Client, view: str) -> None:
    answer = client.view(view, 400)
    assert answer["what"] and answer["error"]


def test_a_page_without_the_address_of_a_server_has_no_status(client: Client) -> None:
    assert client.view("federation") == {"address": None}


def test_hostile_names_are_data_and_never_end_a_script(tmp_path: Path, client: Client) -> None:
    for j, name in enumerate(HOSTILE):
        write_run(tmp_path / name, [0.1, 0.2], f"seed={j}", "C=1")
    client.server.source._until = 0.0
    answer = client.get(f"/{client.server.token}/api/runs")
    text = answer.read().decode()
    assert answer.headers["Content-Type"].startswith("application/json") and "<" not in text
    assert {run["name"] for run in json.loads(text)["runs"]} >= set(HOSTILE)


def test_a_damaged_run_is_listed_with_its_error(tmp_path: Path, client: Client) -> None:
    (tmp_path / "ssl-666" / "rounds.jsonl").write_text("{}\n")
    (tmp_path / "fedavg-666" / "spec.toml").write_text("what = 1\n")
    client.server.source._until = 0.0
    runs = {run["name"]: run for run in client.view("runs")["runs"]}
    assert [runs[name]["state"] for name in ("ssl-666", "fedavg-666", "ssl-1234")] == ["damaged", "damaged", "finished"]
    assert "rounds.jsonl" in runs["ssl-666"]["why"]
    assert client.view(f"run?id={runs['ssl-666']['id']}", 400)["error"] == runs["ssl-666"]["why"]


def test_a_diverged_run_has_its_reason(tmp_path: Path, client: Client) -> None:
    run = write_run(tmp_path / "fast", [0.1, 0.2], "R=9", "C=1")
    (run.path / "diverged.txt").write_text("round 2: the loss of client 3 is nan\n")
    client.server.source._until = 0.0
    found = next(one for one in client.view("runs")["runs"] if one["name"] == "fast")
    assert (found["state"], found["why"]) == ("diverged", "round 2: the loss of client 3 is nan")


def append_row(path: Path, r: int) -> None:
    with (path / "rounds.jsonl").open("a") as file:
        file.write(json.dumps(row(r, 0.5)) + "\n")


def test_new_rows_arrive_as_events(tmp_path: Path, client: Client) -> None:
    run = write_run(tmp_path / "going", [0.1, 0.2], "R=9", "C=1")
    client.server.source._until = 0.0
    stream = client.stream()
    assert read_event(stream)["event"] == "start"
    append_row(run.path, 2)
    event = read_event(stream)
    (changed,) = json.loads(event["data"])["runs"]
    assert event["event"] == "runs" and changed["name"] == "going" and changed["round"] == 2


def test_a_stream_is_resumed_after_the_row_that_the_browser_has_seen(tmp_path: Path, client: Client) -> None:
    run = write_run(tmp_path / "going", [0.1, 0.2], "R=9", "C=1")
    client.server.source._until = 0.0
    first = read_event(client.stream())
    assert first["event"] == "start"
    append_row(run.path, 2)
    append_row(run.path, 3)
    client.server.source._until = 0.0
    event = read_event(client.stream(Last_Event_ID=first["id"]))
    content = json.loads(event["data"])
    assert (event["event"], int(event["id"]), content["reload"]) == ("runs", int(first["id"]) + 2, False)
    assert [(one["name"], one["round"]) for one in content["runs"]] == [("going", 3)]


@pytest.mark.parametrize("number", ["99", "-1", "²", "1" * 5000])
def test_a_number_that_the_server_has_not_sent_loads_everything(client: Client, number: str) -> None:
    assert read_event(client.stream(Last_Event_ID=number))["event"] == "start"


def test_rows_of_earlier_moments_of_a_run_are_not_kept(tmp_path: Path, client: Client) -> None:
    run = write_run(tmp_path / "going", [0.1, 0.2], "R=99", "C=1", marker="rows of this run")
    for r in range(2, 12):
        append_row(run.path, r)
        client.server.source._until = 0.0
        client.view("curves")
    gc.collect()
    lists = [one for one in gc.get_objects() if type(one) is list and one and type(one[0]) is dict]
    assert sum(one[0].get("marker") == "rows of this run" for one in lists) == 1


def test_new_runs_make_the_page_load_the_list_again(tmp_path: Path, client: Client) -> None:
    stream = client.stream()
    assert read_event(stream)["event"] == "start"
    write_run(tmp_path / "later", [0.1], "R=9", "C=1")
    assert json.loads(read_event(stream)["data"])["reload"] is True


def test_there_are_at_most_so_many_streams(client: Client) -> None:
    streams = [client.stream() for _ in range(FAST.streams)]
    assert [read_event(stream)["event"] for stream in streams] == ["start"] * FAST.streams
    assert client.stream().status == 503

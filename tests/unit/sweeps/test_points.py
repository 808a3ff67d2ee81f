"""The points of a sweep, from words to specs."""

from pathlib import Path

import numpy as np
import pytest

from splitrelay.cli.spec_arguments import expand_arguments
from splitrelay.errors import InputError, UnknownName
from splitrelay.runs.build import resolve_spec
from splitrelay.runs.spec import get_key
from splitrelay.sweeps.points import Point, check_points, expand_points


def points(*words: str) -> list[Point]:
    return expand_points(*expand_arguments("sweep", words)).points


def test_the_last_key_turns_fastest() -> None:
    found = points("algorithm=ssl,fedavg", "K=3", "eta=.003,.01")
    assert [(p.spec.algorithm, p.spec.optimiser.eta, p.spec.K) for p in found] == [
        ("ssl", 0.003, 3), ("ssl", 0.01, 3), ("fedavg", 0.003, 3), ("fedavg", 0.01, 3),
    ]  # fmt: skip
    assert found[1].label == "algorithm=ssl eta=.01"


@pytest.mark.parametrize(
    ("word", "values"),
    [
        ("eta=0.01:1:log:3", ["0.01", "0.1", "1"]),
        ("eta=0.1:0.3:lin:3,1", ["0.1", "0.2", "0.3", "1"]),
        ("K=5:20:4", ["5", "10", "15", "20"]),
        ("K=1:3", ["1", "2", "3"]),
        ("seed=0:2", ["0", "1", "2"]),
        ("clip=none,10", ["none", "10"]),
        ("optimiser.eta=1,2", ["1", "2"]),
        ("algorithm=ssl, fedavg", ["ssl", "fedavg"]),
        ("model=own:net,lenet5", ["own:net", "lenet5"]),
        ("cut=1,pool2", ["1", "pool2"]),
    ],
)
def test_lists_and_ranges(word: str, values: list[str]) -> None:
    assert list(expand_arguments("sweep", [word])[1].values()) == [values]


def test_a_path_may_hold_a_comma(tmp_path: Path) -> None:
    (tmp_path / "a,b.npz").touch()
    assert expand_arguments("sweep", [f"data={tmp_path}/a,b.npz"])[1]["data"] == [f"{tmp_path}/a,b.npz"]
    assert len(expand_arguments("sweep", [f"data={tmp_path}/c,d.npz"])[1]["data"]) == 2


@pytest.mark.parametrize(
    ("key", "kind"),
    [("eta", float), ("optimiser.eta", float), ("S", int), ("clip", float), ("seed", int), ("partition.seed", int),
     ("cut", None), ("algorithm", None), ("weighted", None), ("preset", None)],
)  # fmt: skip
def test_only_numbers_have_ranges(key: str, kind: type | None) -> None:
    assert get_key(key).number_type is kind


def test_the_same_run_twice_is_left_out_and_said() -> None:
    found = expand_points(None, {"eta": ["0.1", ".1", "0.2"]})
    assert [p.spec.optimiser.eta for p in found.points] == [0.1, 0.2]
    assert found.dropped == ["eta=.1, the same run as eta=0.1"]


def test_of_two_lengths_of_a_run_the_longer_is_kept() -> None:
    found = expand_points(None, {"R": ["3", "9", "5"]})
    assert [p.spec.R for p in found.points] == [9] and len(found.dropped) == 2


def test_names_are_readable_unlike_and_no_settings() -> None:
    found = points("data=a/b.npz,./c d.npz", "algorithm=ssl,fedavg", "eta=1e-3,0.1")
    names = [p.name for p in found]
    assert names[0] == f"a-b.npz-ssl-eta1e-3-{found[0].spec.hash}"
    assert len(set(names)) == 8 and not any(set(name) & set("=/ ,") for name in names)
    assert points("K=3")[0].name.startswith("ssl-")
    drawn = points("order=replacement,permutation", "draw=replacement,passes")
    assert drawn[0].name.startswith("order-replacement-draw-replacement-")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("eta=0.1,fast",), "point 2 of 2, eta=fast: eta"),
        (("S=3,30", "eta=1,2"), "point 3 of 4, S=30 eta=1: S = 30"),
        (("etta=1,2",), "unknown key 'etta'. Did you mean 'eta'?"),
        (("eta=1", "eta=2"), "eta is given twice; got eta=1 eta=2. Give a list instead: eta=a,b."),
        (("M=3", "partition.M=4,5"), "partition.M is given twice; got M=3 partition.M=4,5."),
        (("eta=1,,2",), "eta has an empty value; got '1,,2'"),
        (("eta=0:1:log:3",), "a log range; needs ends above 0"),
        (("a.toml", "b.toml"), "sweep takes one spec; got a.toml b.toml"),
    ],
)
def test_wrong_words_get_one_line(words: tuple[str, ...], says: str) -> None:
    with pytest.raises(InputError) as error:
        points(*words)
    assert says in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("algorithm=ssl,sls", "point 2 of 2, algorithm=sls: unknown algorithm 'sls'. Did you mean 'ssl'?"),
        ("order=fixed,fixd", "point 2 of 2, order=fixd: unknown order"),
        ("partition=exdir,iit", "unknown partition 'iit'"),
        ("cut=1,99", "point 2 of 2, cut=99: "),
        ("init=none,nothing.safetensors", "no weights at nothing.safetensors"),
        ("validation=0.2,0.001", "point 2 of 2, validation=0.001: "),
        ("loss=mse,huber", "point 2 of 2, loss=huber: unknown loss"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_starts(tmp_path: Path, word: str, says: str) -> None:
    np.savez(tmp_path / "own.npz", x=np.zeros((60, 8, 8), dtype=np.uint8), y=np.arange(60) % 3)
    algorithm = [] if word.startswith("algorithm") else ["algorithm=minibatch-sgd"]
    found = points(f"data={tmp_path}/own.npz", "M=5", "C=1", *algorithm, word)
    with pytest.raises(InputError) as error:
        check_points(found)
    assert says in str(error.value) and not isinstance(error.value, UnknownName)


def test_auto_is_the_engine_that_it_stands_for(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=np.zeros((60, 8, 8), dtype=np.uint8), y=np.arange(60) % 3)
    (auto,) = points(f"data={tmp_path}/own.npz", "M=5", "C=1", "engine=auto")
    engine = resolve_spec(auto.spec)[0].engine
    found = check_points(points(f"data={tmp_path}/own.npz", "M=5", "C=1", f"engine=auto,{engine}"))
    assert [point.spec.engine for point in found.points] == [engine] and len(found.dropped) == 1

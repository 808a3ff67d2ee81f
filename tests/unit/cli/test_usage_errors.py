"""Slips of the hand on the command line: each is one line that shows the way, and nothing is begun."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from splitrelay.cli.main import app
from splitrelay.errors import InputError


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A spec, a folder that holds one, and one that does not."""
    monkeypatch.chdir(tmp_path)
    Path("first.toml").write_text('algorithm = "ssl"\n')
    for folder in ("a run", "empty"):
        Path(folder).mkdir()
    Path("a run/spec.toml").write_text("")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("run", "frst.toml"), "there is no spec frst.toml. Did you mean 'first.toml'?"),
        (("run", "empty/first.toml"), "there is no spec empty/first.toml. splitrelay new NAME"),
        (("run", "first.toml", "R"), "run takes one spec; got first.toml R. Settings are KEY=VALUE."),
        (("run", "a run"), "splitrelay run 'a run/spec.toml' --out 'a run'"),
        (("run", "empty"), "empty is a folder, not a spec"),
        (("sweep",), "there is nothing to sweep"),
        (("sweep", "eta=0.1:0.3:logg"), "eta=0.1:0.3:logg is not a range. Ranges: from:to, from:to:log"),
        (("reproduce",), "there is nothing to reproduce. For example"),
        (("reproduce", "R=3"), "there is nothing to reproduce. For example"),
        (("cost", "algorithm=fedavgg"), "unknown algorithm 'fedavgg'. Did you mean 'fedavg'?"),
        (("cost", "--algorithm", "sls"), "unknown algorithm 'sls'. Did you mean 'ssl'?"),
    ],
)
def test_a_slip_is_said(words: tuple[str, ...], says: str) -> None:
    before = sorted(Path().rglob("*"))
    error = CliRunner().invoke(app, list(words)).exception
    assert isinstance(error, InputError) and says in str(error)
    assert sorted(Path().rglob("*")) == before


def test_the_next_command_can_be_typed_as_it_stands() -> None:
    assert "next: splitrelay run 'two words.toml'" in CliRunner().invoke(app, ["new", "two words"]).stderr

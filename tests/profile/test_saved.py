"""Contract under test: a profile that was saved is opened and compared as it was; a file that is
damaged, or made to hurt, is refused and changes nothing on the terminal."""

import functools
import json

import pytest

from numba_marlin.cli.main import main
from numba_marlin.profile import build as profile
from tests.profile.built import data


def test_a_profile_is_kept_opened_and_compared(tmp_path, capsys):
    kept, page = tmp_path / "run.json", tmp_path / "page.html"
    arguments = ["--m", "16", "--n", "256", "--k", "256", "--kernel", "tiled", "--device", "H200"]
    assert main(["profile", *arguments, "--save", str(kept), "--html", str(page), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (
        found["schema"] == "numba-marlin/profile/1"
        and found["ok"]
        and found["profile"]["schema"] == profile.SCHEMA
        and found["findings"]
    )
    assert len(page.read_bytes()) < 1_000_000
    again = tmp_path / "again.html", tmp_path / "again.json"
    options = "--html", str(again[0]), "--save", str(again[1])
    assert main(["profile", "--open", str(kept), *options]) == 0
    # a long path may take a line of its own
    assert capsys.readouterr().out.split() == [
        word
        for path in again
        for word in ("wrote", f"{path},", f"{path.stat().st_size:,}", "bytes")
    ]
    altered = json.loads(kept.read_text())
    altered["time"]["us"] *= 2
    other = tmp_path / "other.json"
    other.write_text(json.dumps(altered))
    assert main(["profile", "--open", str(kept), "--against", str(other), "--view", "compare"]) == 0
    assert "2.000" in capsys.readouterr().out
    for change in (
        lambda each: each.pop("counts"),
        lambda each: each.update(launch=[]),
        lambda each: each.update(sections=7),
    ):
        altered = json.loads(kept.read_text())
        change(altered)
        other.write_text(json.dumps(altered))
        assert main(["profile", "--open", str(other)]) == 2
        assert f"{other} is damaged, or was altered" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["state missing", "lanes unit", "ceilings source"])
def test_a_list_where_a_saved_profile_has_text_is_damage(place, tmp_path, capsys):
    spoilt, path = data(), tmp_path / "run.json"
    group, field = place.split()
    spoilt[group][field] = []
    path.write_text(json.dumps(spoilt))
    assert main(["profile", "--open", str(path)]) == 2
    assert f"{path} is damaged, or was altered" in capsys.readouterr().err


def strings_of(value, path=()):
    """Where the strings of nested dicts and lists are."""
    if isinstance(value, str):
        yield path
    elif isinstance(value, (dict, list)):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from strings_of(each, (*path, key))


def test_escapes_in_a_saved_profile_are_shown_and_not_obeyed(tmp_path, capsys, thorough):
    mark, path = "\x1b]0;owned\x07", tmp_path / "run.json"
    places = list(strings_of(data()))
    assert len(places) > 50
    shown_ = 0
    # each alone, as one may stop the others from being shown; of the rows of a list, the first
    alone = [each for each in places if not any(isinstance(key, int) and key for key in each)]
    for place in alone if thorough else alone[::4]:
        spoilt = data()
        *way, last = place
        holder = functools.reduce(lambda value, key: value[key], way, spoilt)
        holder[last] += mark
        path.write_text(json.dumps(spoilt))
        code = main(["profile", "--open", str(path)])
        printed = "".join(capsys.readouterr())
        assert code in (0, 2) and "\x1b" not in printed and "\x07" not in printed, place
        shown_ += "\\x1b" in printed
    assert shown_ > (10 if thorough else 3)


def test_a_file_that_is_nested_without_end_is_no_profile(tmp_path):
    path = tmp_path / "run.json"
    path.write_text("[" * 100_000)
    with pytest.raises(ValueError, match="not a profile"):
        profile.load(path)


@pytest.mark.parametrize("place", ["problem", "launch", "counts"])
def test_a_file_that_is_nested_deeper_than_a_profile_is_none(place, tmp_path, capsys):
    deep, path = [], tmp_path / "run.json"
    for _ in range(300):
        deep = [deep]
    path.write_text(json.dumps({**data(), place: {**data()[place], "more": deep}}))
    assert main(["profile", "--open", str(path), "--json"]) == 2
    assert f"{path}: not a profile (its lists are nested" in capsys.readouterr().err

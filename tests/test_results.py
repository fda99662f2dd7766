"""A saved measurement comes back as it was, or not at all."""

import json
import resource
import signal
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from norm_geometry import results

TABLE = pd.DataFrame({"site": ["norm", "norm"], "mean": [90.123456789, np.nan], "count": [3, 0]})


def test_a_table_comes_back_as_it_was(tmp_path):
    results.save(TABLE, {"model": "µ", "seed": 1}, tmp_path / "a.csv")
    table, provenance = results.load(tmp_path / "a.csv")
    pd.testing.assert_frame_equal(table, TABLE)
    assert (provenance["model"], provenance["seed"]) == ("µ", 1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.csv", "a.json"]


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        ("a.csv", flip_a_bit, r"a\.csv is damaged"),
        ("a.csv", lambda p: p.write_bytes(p.read_bytes()[:-5]), r"a\.csv is damaged"),
        ("a.csv", lambda p: p.write_text(""), r"a\.csv is damaged"),
        ("a.json", lambda p: p.write_text(p.read_text()[:20]), r"a\.json is damaged"),
        ("a.json", lambda p: p.write_text("[]"), r"a\.json is damaged"),
        ("a.json", lambda p: p.write_bytes(b"\xff\x00"), r"a\.json is damaged"),
        ("a.json", lambda p: p.unlink(), r"a\.json does not exist"),
        ("a.csv", lambda p: p.unlink(), r"a\.csv does not exist"),
    ],
)
def test_damage_is_detected_and_named(file, damage, message, tmp_path):
    results.save(TABLE, {}, tmp_path / "a.csv")
    damage(tmp_path / file)
    with pytest.raises((ValueError, FileNotFoundError), match=message) as error:
        results.load(tmp_path / "a.csv")
    assert "\n" not in str(error.value)


def test_every_published_measurement_is_whole():
    for path in (results.DATA / "measurements").glob("*.csv"):
        table, provenance = results.published(path.stem)
        assert len(table)
        assert {"command", "date", "versions"} <= provenance.keys()
        assert path.stem in (results.DATA / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("place", ["missing/a.csv", "file/a.csv", ".", "a.txt"])
def test_what_cannot_be_written_is_said_before_measuring(place, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"cannot (write|hold)") as error:
        results.check_writable(tmp_path / place)
    assert "\n" not in str(error.value)


def test_a_full_disk_leaves_what_was_there(tmp_path):
    results.save(TABLE, {"first": True}, tmp_path / "a.csv")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    code = (
        "import pandas as pd, sys; from norm_geometry import results;"
        "results.save(pd.DataFrame({'x': range(10_000)}), {}, sys.argv[1])"
    )

    def no_file_beyond_a_kilobyte():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))

    done = subprocess.run(
        [sys.executable, "-B", "-c", code, tmp_path / "a.csv"],
        preexec_fn=no_file_beyond_a_kilobyte,
        capture_output=True,
        text=True,
    )
    assert "File too large" in done.stderr
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert json.loads(before["a.json"])["first"]

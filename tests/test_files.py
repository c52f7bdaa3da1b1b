"""A file is whole or not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from slimtier.errors import InputError
from slimtier.files import append_line, replacing, write_whole


def fail_half_way(path: Path) -> None:
    with replacing(path) as beside:
        beside.write_bytes(b"half")
        assert path.read_bytes() == b"old"
        raise ZeroDivisionError


def test_what_was_there_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    write_whole(path, b"old")
    with pytest.raises(ZeroDivisionError):
        fail_half_way(path)
    assert path.read_bytes() == b"old"
    assert [one.name for one in tmp_path.iterdir()] == ["list.json"]
    with replacing(path) as beside:
        beside.write_bytes(b"new")
    assert path.read_bytes() == b"new"
    assert [one.name for one in tmp_path.iterdir()] == ["list.json"]


def test_lines_are_added(tmp_path: Path) -> None:
    append_line(tmp_path / "lines", "one")
    append_line(tmp_path / "lines", "two")
    assert (tmp_path / "lines").read_text() == "one\ntwo\n"


@pytest.mark.parametrize("write", [lambda path: write_whole(path, b""), lambda path: append_line(path, "")])
def test_a_disk_that_does_not_take_it_is_named(write: object, tmp_path: Path) -> None:
    path = tmp_path / "no-directory" / "file"
    with pytest.raises(InputError, match=r"cannot write .*no-directory.*No such file.*run the command again"):
        write(path)  # type: ignore[operator]

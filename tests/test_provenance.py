"""Who, what and when of a number."""

from __future__ import annotations

import json
import shutil
import subprocess
from datetime import UTC, datetime, timedelta

import pytest

from slimtier import provenance
from slimtier.provenance import Provenance


def git(directory, *command):
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", directory, *identity, *command], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path):
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    git(tmp_path, "init", "--quiet")
    for name in ("package/code.py", "other.py", "results/old.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    return tmp_path


def test_the_commit_and_whether_the_tree_differs_from_it(repository):
    file = repository / "package" / "code.py"
    commit = git(repository, "rev-parse", "HEAD")
    assert provenance._commit(file) == (commit, False)
    (repository / "results" / "old.jsonl").write_text("2\n")  # numbers are written while they are measured
    (repository / "new.txt").write_text("untracked\n")
    assert provenance._commit(file) == (commit, False)
    (repository / "other.py").write_text("2\n")  # a change anywhere else counts
    assert provenance._commit(file) == (commit, True)


def test_a_foreign_repository_or_none_gives_no_commit(repository, tmp_path_factory):
    installed = repository / "venv" / "code.py"
    installed.parent.mkdir()
    installed.write_text("1\n")
    assert provenance._commit(installed) == (None, None)
    assert provenance._commit(tmp_path_factory.mktemp("plain") / "code.py") == (None, None)


def test_without_git_there_is_no_commit(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance._commit(tmp_path / "code.py") == (None, None)


def test_it_is_json_and_complete():
    found = Provenance.collect(cores=2, isa="avx2", seed=7, argv=["run.py", "--quick"]).to_dict()
    assert json.loads(json.dumps(found)) == found
    assert (found["cores"], found["isa"], found["seed"], found["argv"]) == (2, "avx2", 7, ["run.py", "--quick"])
    assert found["torch"].startswith("2.")
    assert found["cpu"]
    assert found["python"].startswith("3.")
    age = datetime.now(UTC) - datetime.fromisoformat(found["date"])
    assert timedelta(seconds=-1) <= age < timedelta(minutes=1)


def test_cores_are_those_the_process_may_use_unless_told():
    assert Provenance.collect().cores == provenance._usable_cores() >= 1


def test_paths_on_the_machine_are_cut_to_names():
    argv = [
        "/home/me/run.py",
        "--prompts",
        "/data/x/prompts.jsonl",
        "--out=/tmp/a.jsonl",
        "--model=b/c",
        "peers=/venv/bin/python",
        "a/b",
        "--x",
        "/",
    ]
    cut = ["run.py", "--prompts", "prompts.jsonl", "--out=a.jsonl", "--model=b/c", "peers=python", "a/b", "--x", "/"]
    assert list(Provenance.collect(argv=argv).argv) == cut


def test_what_is_not_installed_has_no_version():
    assert provenance.version_of("no-such-package-anywhere") is None

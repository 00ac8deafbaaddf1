"""The stamp: what the code's identity reacts to, what it is not fooled by, and that nothing unknown is guessed."""

from __future__ import annotations

import os
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from benchmarks.lab import machine, stamp
from benchmarks.lab.errors import LabError
from benchmarks.lab.model import Backend, EngineFacts

# ---- the code ----


def git(root: Path, *arguments: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    argv = ("git", "-c", f"safe.directory={root}", *identity, *arguments)
    return subprocess.run(argv, cwd=root, env=environment, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A committed checkout in miniature."""
    found = tmp_path / "checkout"
    for name, text in {
        "benchmarks/lab/a.py": "a = 1\n",
        "scripts/b.py": "b = 1\n",
        "pyproject.toml": "[project]\n",
        "README.md": "# hello\n",
        "hardware/m/trials.jsonl": "",
        ".gitignore": "*.log\n__pycache__/\n",
    }.items():
        (found / name).parent.mkdir(parents=True, exist_ok=True)
        (found / name).write_text(text, encoding="utf-8")
    git(found, "init", "-q")
    git(found, "add", "-A")
    git(found, "commit", "-q", "-m", "all")
    return found


def test_a_clean_checkout_is_known_whole(root: Path) -> None:
    found = stamp.code(root)
    assert found.head is not None
    assert git(root, "rev-parse", "HEAD").startswith(found.head)
    assert found.dirty is False
    assert found.digest is not None
    assert found.note is None
    assert found.measurement_version == stamp.MEASUREMENT_VERSION


@pytest.mark.parametrize(
    "name", ["README.md", "hardware/m/trials.jsonl", "docs/new.md", "benchmarks/x.log", "benchmarks/__pycache__/a.pyc"]
)
def test_an_unrelated_or_ignored_file_changes_nothing(root: Path, name: str) -> None:
    before = stamp.code(root)
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text("changed\n", encoding="utf-8")
    assert stamp.code(root) == before


@pytest.mark.parametrize("name", ["benchmarks/lab/a.py", "scripts/b.py", "pyproject.toml", "benchmarks/new file é.py"])
def test_a_changed_or_new_file_of_the_code_is_dirty_and_has_another_digest(root: Path, name: str) -> None:
    before = stamp.code(root)
    (root / name).write_text("changed\n", encoding="utf-8")
    after = stamp.code(root)
    assert (after.head, after.dirty) == (before.head, True)
    assert after.digest != before.digest


def test_a_deleted_file_a_staged_one_and_a_mode_are_seen(root: Path) -> None:
    digests = {stamp.code(root).digest}
    (root / "scripts/b.py").chmod(0o755)
    digests.add(stamp.code(root).digest)
    (root / "scripts/b.py").unlink()
    digests.add(stamp.code(root).digest)
    (root / "benchmarks/c.py").write_text("c\n", encoding="utf-8")
    git(root, "add", "benchmarks/c.py")
    digests.add(stamp.code(root).digest)
    assert len(digests) == 4
    assert stamp.code(root).dirty is True


def test_committing_what_ran_moves_head_and_not_the_digest(root: Path) -> None:
    (root / "benchmarks/lab/a.py").write_text("a = 2\n", encoding="utf-8")
    dirty = stamp.code(root)
    git(root, "commit", "-q", "-am", "two")
    clean = stamp.code(root)
    assert clean.digest == dirty.digest
    assert (dirty.dirty, clean.dirty) == (True, False)
    assert clean.head != dirty.head


def test_touching_a_file_is_no_change(root: Path) -> None:
    os.utime(root / "benchmarks/lab/a.py", (1, 1))
    assert stamp.code(root).dirty is False


def test_an_exported_tree_has_the_digest_of_its_checkout_and_says_what_it_does_not_know(
    root: Path, tmp_path: Path
) -> None:
    before = stamp.code(root)
    export = tmp_path / "export"
    shutil.copytree(root, export, ignore=shutil.ignore_patterns(".git"))
    (export / "benchmarks/lab/__pycache__").mkdir()
    (export / "benchmarks/lab/__pycache__/a.pyc").write_bytes(b"x")
    found = stamp.code(export)
    assert found.digest == before.digest
    assert (found.head, found.dirty) == (None, None)
    assert found.note is not None


def test_a_tree_inside_somebody_elses_repository_does_not_take_its_head(root: Path) -> None:
    inner = root / "vendor"
    shutil.copytree(root / "benchmarks", inner / "benchmarks")
    assert stamp.code(inner).head is None


def test_a_repository_without_a_commit_says_so(root: Path) -> None:
    shutil.rmtree(root / ".git")
    git(root, "init", "-q")
    found = stamp.code(root)
    assert (found.head, found.dirty) == (None, None)
    assert found.digest is not None
    assert found.note == "this checkout has no commit yet"


def test_a_machine_without_git_says_so(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = stamp.code(root)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = stamp.code(root)
    assert (found.digest, found.head, found.dirty) == (before.digest, None, None)


def test_variables_that_a_git_hook_sets_do_not_mislead(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = stamp.code(root)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    assert stamp.code(root) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_checkout_of_another_user_is_read_all_the_same(root: Path) -> None:
    before = stamp.code(root)
    for path in (root, *root.rglob("*")):
        os.chown(path, 65534, 65534, follow_symlinks=False)
    assert stamp.code(root) == before


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (stamp.CodeStamp(digest="d" * 64, dirty=False, head="abc1234"), "[abc1234@epyc-24g]"),
        (stamp.CodeStamp(digest="d" * 64, dirty=True, head="abc1234"), "[abc1234-dirty@epyc-24g]"),
        (stamp.CodeStamp(digest="d" * 64, dirty=None, head=None), "[code-ddddddddd@epyc-24g]"),
        (stamp.CodeStamp(digest=None, dirty=None, head=None), "[unknown@epyc-24g]"),
    ],
)
def test_lines_say_what_produced_them(code: stamp.CodeStamp, words: str) -> None:
    assert stamp.prefix(code, "epyc-24g") == words


# ---- the values ----

CODE = stamp.CodeStamp(digest="d" * 64, dirty=False, head="abc1234")
BACKEND = Backend(name="b", engine="openai", sampler={"temperature": 0.2}, rewrite=("sampler",), max_tokens=256)
FACTS = EngineFacts(
    engine="llama.cpp", version="9", model_id="m", context=4096, sampler={"temperature": 0.8, "top_k": 40}
)


def whole(backend: Backend = BACKEND, facts: EngineFacts = FACTS) -> dict[str, object]:
    return stamp.assemble(
        stamp.of_code(CODE, program="benchmarks/agent/run.py", flags=("--trials", "3"), lab_digest="e" * 64),
        stamp.of_machine(machine.describe()),
        stamp.of_backend(backend, facts),
        {"client": "codex", "client_version": "0.171.0", "isolation": "bwrap"},
    )


def test_a_stamp_has_every_key_and_null_where_nobody_told() -> None:
    values = whole()
    assert list(values) == list(stamp.KEYS)
    assert values["flags"] == ["--trials", "3"]
    assert values["suite_digest"] is None
    assert values["slots"] is None


BARE = machine.Machine(
    id="m", label="m", os="Linux", kernel="6", arch="x", chip=None, model=None, memory_bytes=1, memory_limit_bytes=None,
    cores=1,
)  # fmt: skip


def test_a_key_says_when_it_is_null_and_only_if_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "power", lambda: {"power_source": None, "power_mode": None})
    parts = (
        stamp.of_code(stamp.CodeStamp(digest=None, dirty=None, head=None), program="p", flags=(), lab_digest="e" * 64),
        stamp.of_machine(BARE),
        stamp.of_backend(Backend(name="b", engine="openai"), EngineFacts()),
    )
    null = {name for part in parts for name, value in part.items() if value is None}
    assert null == {name for name, key in stamp.KEYS.items() if key.null is not None}


def test_the_engines_word_counts_and_not_the_lab_files_wish() -> None:
    values = whole(Backend(name="b", engine="openai", context=9999, quantization="Q8"))
    assert (values["engine"], values["context"], values["quantization"]) == ("llama.cpp", 4096, None)


def test_the_sampler_in_force_and_who_set_it() -> None:
    assert (whole()["sampler"], whole()["sampler_set_by"]) == ({"temperature": 0.2, "top_k": 40}, "meter")
    untouched = whole(Backend(name="b", engine="openai"))
    assert (untouched["sampler"], untouched["sampler_set_by"]) == (dict(FACTS.sampler or {}), "engine")
    silent = whole(Backend(name="b", engine="openai"), EngineFacts())
    assert silent["sampler"] is None


def test_later_parts_win() -> None:
    assert stamp.assemble({"client": "a"}, {"client": "b"})["client"] == "b"


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"contxt": 1}, "stamp key contxt is not in the table"),
        ({"context": "8k"}, "stamp key context is str, the table says int"),
        ({"context": True}, "stamp key context is bool"),
    ],
)
def test_a_key_that_the_table_does_not_know_is_refused(part: dict[str, object], words: str) -> None:
    with pytest.raises(LabError, match=words):
        stamp.assemble(part)


def test_the_digest_follows_values_and_not_their_order() -> None:
    values = whole()
    assert stamp.digest(values) == stamp.digest(dict(reversed(values.items())))
    assert stamp.digest(values) != stamp.digest({**values, "context": 1})
    assert stamp.digest(values) != stamp.digest({**values, "slots": 0})


def test_dirty_demo_or_unsandboxed_rows_may_guide_but_not_be_published() -> None:
    assert stamp.unpublishable(whole()) == ()
    for change, reason in (
        ({"dirty": True}, "dirty is true"),
        ({"dirty": None}, "dirty is null"),
        ({"head": None}, "head is null"),
        ({"purpose": "demo"}, 'purpose is "demo"'),
        ({"isolation": "none"}, 'isolation is "none"'),
        ({"context": None}, "context is null"),
    ):
        assert stamp.unpublishable({**whole(), **change}) == (reason,)


def test_the_engine_s_uptime_counts_from_its_start_and_is_unknown_without_one() -> None:
    began = datetime.now(UTC) - timedelta(hours=1)
    uptime = stamp.volatile(began.isoformat(timespec="seconds"))["engine_uptime_seconds"]
    assert 3600 <= uptime < 3700
    assert stamp.volatile()["engine_uptime_seconds"] is None


def test_volatile_values_are_the_tables_and_never_part_of_a_stamp() -> None:
    values = stamp.volatile()
    assert list(values) == list(stamp.VOLATILE)
    assert not set(stamp.VOLATILE) & set(stamp.KEYS)
    for name, value in values.items():
        key = stamp.VOLATILE[name]
        assert isinstance(value, key.type) if value is not None else key.null, name
    assert values["memory_available_bytes"] > 0
    assert values["uptime_seconds"] > 0

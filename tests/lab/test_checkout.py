"""From a pinned source to a workspace, the scan for leaks, and what is taken of what an agent leaves."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator, Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest

from benchmarks.lab import checkout
from benchmarks.lab.checkout import leaks
from benchmarks.lab.checkout.environment import prove
from benchmarks.lab.checkout.sources import _unpack
from benchmarks.lab.checkout.workspace import excised_tree, suite_command
from benchmarks.lab.errors import LabError, UsageError
from benchmarks.lab.fsio import remove_tree
from benchmarks.lab.model import Checkout, Environment, Excision, Source, Target, Task

BODY = """    weights = [item.weight_in_grams for item in items]
    surcharge = sum(weight // 1000 for weight in weights)
    return base_price_of(zone) + surcharge * zone_factor(zone)
"""
MODULE = f'''"""Postage."""


def base_price_of(zone):
    return 3


def zone_factor(zone):
    return 2


def postage(items, zone):
    """Price of a parcel."""
{BODY}'''
FILES = {
    "parcel/__init__.py": "",
    "parcel/rates.py": MODULE,
    "tests/test_rates.py": "from parcel.rates import zone_factor\n\n\ndef test_a():\n    assert zone_factor(1) == 2\n",
    "pyproject.toml": "[project]\nname = 'parcel'\n",
    ".gitignore": "data/\n",
    ".gitattributes": "parcel/*.py text eol=crlf\ntests export-ignore\n",
    "data/dos.txt": "one\r\ntwo\r\n",
}


@pytest.fixture(autouse=True)
def _folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_LAB_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=A", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)
    return os.fsdecode(done.stdout).strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "a person's répo"
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    (folder / "latin.py").write_bytes(b"# coding: latin-1\nx = '\xe9'\n")
    (folder / "link").symlink_to("parcel/rates.py")
    (folder / os.fsdecode(b"odd-\xff")).write_bytes(b"odd")
    git(folder, "init", "-q")
    git(folder, "add", "-A", "-f")
    git(folder, "commit", "-q", "-m", "the secret history")
    return folder


def target_at(repository: Path, **changes: object) -> Target:
    target = Target(
        name="parcel",
        source=Source(kind="path", path=str(repository), commit=git(repository, "rev-parse", "HEAD")),
        language="python",
        license="MIT",
        imports=("parcel",),
        requires=("pytest==1",),
        suite=("-m", "pytest", "-q"),
    )
    return msgspec.structs.replace(target, **changes)


TASK = Task(
    id="parcel-postage",
    target="parcel",
    tier=1,
    excise=(Excision(path="parcel/rates.py", symbol="postage"),),
    fail_to_pass=("t",),
)
ENVIRONMENT = Environment(
    python=Path(sys.executable), readonly=(Path(sys.prefix), Path(sys.base_prefix)), digest="0" * 64
)


@pytest.fixture(autouse=True)
def _proofs_beside_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof lies beside an environment of ours; the one that runs the tests is not ours to write to."""
    monkeypatch.setattr("benchmarks.lab.checkout.workspace.prove", lambda *_: None)


@pytest.fixture
def prepared(repository: Path, tmp_path: Path) -> Checkout:
    return checkout.prepare(target_at(repository), TASK, ENVIRONMENT, tmp_path / "work" / 'ä "quoted" space')


# ---- workspaces ----


def test_case_9_odd_names_and_bytes_come_through_unchanged(prepared: Checkout) -> None:
    work = prepared.workspace
    assert (work / "data/dos.txt").read_bytes() == b"one\r\ntwo\r\n"
    assert (work / "latin.py").read_bytes().endswith(b"'\xe9'\n")
    assert (work / "link").readlink() == Path("parcel/rates.py")
    assert os.fsdecode(b"odd-\xff") in {path.name for path in work.iterdir()}
    assert (work / "tests/test_rates.py").is_file()  # export-ignore is for releases
    assert (work / "parcel/rates.py").read_text() == MODULE.replace(BODY, "    raise NotImplementedError\n")


def test_B54_a_workspace_is_one_orphan_commit_without_remote_or_reflog(prepared: Checkout) -> None:
    work = prepared.workspace
    assert git(work, "rev-list", "--all", "--count") == "1"
    assert git(work, "log", "--format=%an %ad %P", "--date=iso") == "local-lab 2000-01-01 00:00:00 +0000"
    assert git(work, "remote") == ""
    assert git(work, "reflog") == ""
    assert git(work, "status", "--porcelain") == ""
    assert "latin.py" in git(work, "ls-files")
    assert "data/dos.txt" in git(work, "ls-files")


def test_case_12_nothing_of_the_workspace_holds_the_answer(prepared: Checkout) -> None:
    objects = git(prepared.workspace, "rev-list", "--all", "--objects").split("\n")
    contents = [git(prepared.workspace, "cat-file", "-p", line.split()[0]) for line in objects]
    files = [p.read_bytes() for p in prepared.workspace.rglob("*") if p.is_file() and not p.is_symlink()]
    assert not any("weight_in_grams" in content or "secret history" in content for content in contents)
    assert not any(b"weight_in_grams" in content for content in files)
    assert prepared.solution == {"parcel/rates.py": MODULE.encode()}


def test_two_workspaces_of_a_task_are_the_same_and_apart(prepared: Checkout, tmp_path: Path) -> None:
    (prepared.workspace / "parcel/rates.py").write_text("changed")
    again = checkout.prepare(prepared.target, TASK, ENVIRONMENT, tmp_path / "again")
    assert git(again.workspace, "rev-parse", "HEAD") == git(prepared.workspace, "rev-parse", "HEAD")
    assert "NotImplementedError" in (again.workspace / "parcel/rates.py").read_text()
    assert again.target_digest == prepared.target_digest


def test_bytecode_and_tool_caches_are_left_out(repository: Path, tmp_path: Path) -> None:
    for name in ("parcel/__pycache__/rates.cpython-311.pyc", ".pytest_cache/v", "old.pyc", "parcel/.git/config"):
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_bytes(b"x")
    git(repository, "add", "-f", "parcel/__pycache__", ".pytest_cache", "old.pyc")
    git(repository, "commit", "-q", "-m", "more")
    made = checkout.prepare(target_at(repository), TASK, ENVIRONMENT, tmp_path / "w")
    left = {path.name for path in made.workspace.rglob("*") if ".git" not in path.parts}
    assert not left & {"__pycache__", ".pytest_cache", "old.pyc"}


def test_a_persons_repository_is_exported_from_and_left_as_it_was(repository: Path, tmp_path: Path) -> None:
    target = target_at(repository)
    (repository / "parcel/rates.py").write_text("work in progress")
    (repository / "untracked").write_text("u")
    before = {p: p.stat().st_mtime_ns for p in repository.rglob("*") if p.is_file()}
    made = checkout.prepare(target, TASK, ENVIRONMENT, tmp_path / "w")
    assert {p: p.stat().st_mtime_ns for p in repository.rglob("*") if p.is_file()} == before
    assert made.source_intact is True
    assert "NotImplementedError" in (made.workspace / "parcel/rates.py").read_text()
    assert not (made.workspace / "untracked").exists()


def test_a_repository_that_moves_meanwhile_is_told(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def disturb(*_: object) -> None:
        (repository / "new file").write_text("by somebody else")

    monkeypatch.setattr("benchmarks.lab.checkout.workspace.prove", disturb)
    assert checkout.prepare(target_at(repository), TASK, ENVIRONMENT, tmp_path / "w").source_intact is False


def test_the_prompt_names_what_is_asked_and_not_the_tests(prepared: Checkout) -> None:
    prompt = prepared.prompt
    for part in ("`postage` in `parcel/rates.py`", "3 lines", suite_command(prepared.target, sys.executable)):
        assert part in prompt
    assert "test_rates" not in prompt


def test_the_prompt_digest_does_not_depend_on_where_python_is(prepared: Checkout, tmp_path: Path) -> None:
    elsewhere = msgspec.structs.replace(ENVIRONMENT, python=Path("/other/python"))
    other = checkout.prepare(prepared.target, TASK, elsewhere, tmp_path / "other")
    assert other.prompt != prepared.prompt
    assert other.prompt_digest == prepared.prompt_digest


def test_source_roots_are_on_the_path_of_the_prompts_command(repository: Path) -> None:
    target = target_at(repository, source_roots=("src",))
    assert suite_command(target, "/a b/python") == "env PYTHONPATH=src '/a b/python' -m pytest -q"


@pytest.mark.parametrize(
    ("excision", "says"),
    [
        (
            Excision(path="parcel/rates.py", symbol="postge"),
            'parcel-postage.yaml: excise: parcel/rates.py: symbol "postge"',
        ),
        (
            Excision(path="parcel/rate.py", symbol="f"),
            'parcel-postage.yaml: excise.path: "parcel/rate.py" is not a file',
        ),
        (Excision(path="pyproject.toml", symbol="f"), 'parcel-postage.yaml: excise: path "pyproject.toml": no grammar'),
    ],
)
def test_a_wrong_excision_names_file_and_field(repository: Path, tmp_path: Path, excision: Excision, says: str) -> None:
    task = msgspec.structs.replace(TASK, excise=(excision,))
    with pytest.raises(UsageError) as refusal:
        checkout.prepare(target_at(repository), task, ENVIRONMENT, tmp_path / "w")
    assert str(refusal.value).startswith(says)


# ---- sources ----


def quiet(_: str) -> None: ...


def test_a_missing_commit_or_folder_is_named(repository: Path, cache: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^source\.commit: "):
        checkout.fetch(Source(kind="path", path=str(repository), commit="1" * 40), cache, quiet)
    with pytest.raises(UsageError, match=r"^source\.path: .* is not a folder"):
        checkout.fetch(Source(kind="path", path=str(tmp_path / "no"), commit="1" * 40), cache, quiet)


def test_a_git_source_is_fetched_once_and_then_needs_no_remote(repository: Path, cache: Path, tmp_path: Path) -> None:
    cache.mkdir()
    commit = git(repository, "rev-parse", "HEAD")
    source = Source(kind="git", url=repository.as_uri(), commit=commit)
    checkout.fetch(source, cache, quiet)
    repository.rename(tmp_path / "away")
    tree, _ = checkout.export(target_at(tmp_path / "away", source=source), cache, quiet)
    assert (tree / "parcel/rates.py").read_text() == MODULE
    with pytest.raises(LabError, match=r"^source\.commit: 1111"):
        checkout.fetch(Source(kind="git", url=repository.as_uri(), commit="1" * 40), cache, quiet)


def sdist(name: str, version: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        metadata = f"Metadata-Version: 2.2\nName: {name}\nVersion: {version}\n"
        project = f"[project]\nname = '{name}'\nversion = '{version}'\n"
        for path, text in {**FILES, "PKG-INFO": metadata, "pyproject.toml": project}.items():
            member = tarfile.TarInfo(f"{name}-{version}/{path}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return buffer.getvalue()


def packed(folder: Path, **members: tuple[bytes, str, str, int]) -> Path:
    """An archive of members given as name -> (type, path below the top folder, link's target, mode)."""
    archive = folder / "x-1.0.tar.gz"
    with tarfile.open(archive, "w:gz") as made:
        for kind, path, target, mode in members.values():
            member = tarfile.TarInfo(f"x-1.0/{path}")
            member.type, member.linkname, member.mode = kind, target, mode
            member.size = 2 if kind == tarfile.REGTYPE else 0
            made.addfile(member, io.BytesIO(b"hi") if member.size else None)
    return archive


def test_an_archive_is_laid_out_with_its_links_and_executable_bits(tmp_path: Path) -> None:
    archive = packed(
        tmp_path,
        directory=(tarfile.DIRTYPE, "pkg", "", 0o755),
        run=(tarfile.REGTYPE, "pkg/run.sh", "", 0o755),
        plain=(tarfile.REGTYPE, "pkg/plain", "", 0o600),
        soft=(tarfile.SYMTYPE, "docs/link", "../pkg/plain", 0o777),
        hard=(tarfile.LNKTYPE, "same", "x-1.0/pkg/plain", 0o644),
        fifo=(tarfile.FIFOTYPE, "pkg/fifo", "", 0o644),
    )
    _unpack(archive, tmp_path / "tree")
    laid = {str(path.relative_to(tmp_path / "tree")) for path in (tmp_path / "tree").rglob("*") if not path.is_dir()}
    assert laid == {"pkg/run.sh", "pkg/plain", "docs/link", "same"}
    assert (tmp_path / "tree/pkg/run.sh").stat().st_mode & 0o111
    assert not (tmp_path / "tree/pkg/plain").stat().st_mode & 0o111
    assert (tmp_path / "tree/docs/link").read_bytes() == (tmp_path / "tree/same").read_bytes() == b"hi"


@pytest.mark.parametrize(
    ("kind", "path", "target"),
    [
        (tarfile.REGTYPE, "../../up", ""),
        (tarfile.REGTYPE, "a/../../up", ""),
        (tarfile.REGTYPE, "/etc/up", ""),
        (tarfile.SYMTYPE, "a/link", "../../up"),
        (tarfile.SYMTYPE, "link", "/etc/passwd"),
    ],
)
def test_an_archive_that_leads_out_of_its_folder_is_refused(
    tmp_path: Path, kind: bytes, path: str, target: str
) -> None:
    archive = packed(tmp_path, member=(kind, path, target, 0o644))
    with pytest.raises(LabError, match="leads out of it"):
        _unpack(archive, tmp_path / "deep" / "er" / "tree")
    assert not list(tmp_path.rglob("up"))


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[bytes]:
    """A package index on loopback that has one sdist, set the way a person with a mirror sets it."""
    content = sdist("parcel", "1.0")
    folder = tmp_path / "index" / "parcel"
    folder.mkdir(parents=True)
    (folder / "parcel-1.0.tar.gz").write_bytes(content)
    (folder / "index.html").write_text('<a href="parcel-1.0.tar.gz">parcel-1.0.tar.gz</a>')
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(folder.parent)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(SimpleHTTPRequestHandler, "log_message", lambda *_: None)
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    monkeypatch.delenv("UV_OFFLINE", raising=False)
    yield content
    server.shutdown()
    server.server_close()


def pinned(content: bytes, version: str = "1.0") -> Source:
    return Source(kind="pypi", name="parcel", version=version, sha256=hashlib.sha256(content).hexdigest())


def test_an_sdist_comes_from_the_persons_index_and_then_from_the_cache(
    index: bytes, cache: Path, monkeypatch: pytest.MonkeyPatch, repository: Path
) -> None:
    said: list[str] = []
    source = pinned(index)
    assert checkout.fetch(source, cache, said.append).read_bytes() == index
    assert said == ["fetching parcel==1.0"]
    monkeypatch.setenv("UV_OFFLINE", "1")
    assert checkout.fetch(source, cache, said.append).read_bytes() == index
    assert len(said) == 1
    tree, _ = checkout.export(target_at(repository, source=source), cache, quiet)
    assert (tree / "parcel/rates.py").read_text() == MODULE  # the sdist's own top folder is gone


def test_a_digest_that_differs_is_named(index: bytes, cache: Path) -> None:
    with pytest.raises(UsageError, match=r"^source\.sha256: the sdist of parcel==1\.0 has "):
        checkout.fetch(pinned(b"something else"), cache, quiet)
    assert not list((cache / "sources").glob("*.tar.gz"))


def test_no_network_and_no_cache_is_one_sentence(index: bytes, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_OFFLINE", "1")
    with pytest.raises(LabError, match=r"^source: parcel==1\.0 is not in the cache and") as refusal:
        checkout.fetch(pinned(index), cache, quiet)
    assert "\n" not in str(refusal.value)


def test_a_version_that_the_index_lacks_is_named(index: bytes, cache: Path) -> None:
    with pytest.raises(LabError, match=r"parcel==2\.0"):
        checkout.fetch(pinned(index, "2.0"), cache, quiet)


# ---- environments ----


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one wheel, `tiny`, as the only place that packages come from."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    with zipfile.ZipFile(folder / "tiny-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny.py", "x = 1\n")
        wheel.writestr(
            "tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\nRequires-Dist: small\n"
        )
        wheel.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(
            "tiny-1.0.dist-info/RECORD", "tiny.py,,\ntiny-1.0.dist-info/METADATA,,\ntiny-1.0.dist-info/WHEEL,,\n"
        )
    with zipfile.ZipFile(folder / "small-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("small.py", "x = 1\n")
        wheel.writestr("small-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: small\nVersion: 1.0\n")
        wheel.writestr("small-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("small-1.0.dist-info/RECORD", "small.py,,\n")
    monkeypatch.setenv("UV_FIND_LINKS", str(folder))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    return folder


def test_an_environment_is_built_once_and_holds_the_pins(wheels: Path, repository: Path, cache: Path) -> None:
    said: list[str] = []
    target = target_at(repository, requires=("tiny==1.0", "small==1.0"))
    made = checkout.environment(target, cache, said.append)
    again = checkout.environment(target_at(repository, requires=("small==1.0", "tiny==1.0")), cache, said.append)
    assert again == made
    assert said == ["building the environment of parcel"]
    subprocess.run([made.python, "-c", "import tiny, small"], check=True)
    assert made.python.is_relative_to(made.readonly[0])
    assert not (made.python.parents[1] / "pyvenv.cfg").stat().st_mode & 0o222


def test_a_pin_missing_among_the_requirements_is_told(wheels: Path, repository: Path, cache: Path) -> None:
    with pytest.raises(LabError, match=r"^targets/parcel\.yaml: requires: .*small"):
        checkout.environment(target_at(repository, requires=("tiny==1.0",)), cache, quiet)
    with pytest.raises(LabError, match=r"^targets/parcel\.yaml: requires: .*nowhere"):
        checkout.environment(target_at(repository, requires=("nowhere==1.0",)), cache, quiet)


def test_imports_must_resolve_in_the_workspace_and_not_in_the_environment(
    wheels: Path, repository: Path, cache: Path
) -> None:
    target = target_at(repository, requires=("tiny==1.0", "small==1.0"))
    made = checkout.environment(target, cache, quiet)
    prove(target, made, repository)
    with pytest.raises(UsageError, match="tiny can be imported from the environment itself"):
        prove(msgspec.structs.replace(target, name="other", imports=("tiny",)), made, repository)
    with pytest.raises(UsageError, match='imports: "parcel" is not found below source_roots'):
        prove(msgspec.structs.replace(target, name="third", source_roots=("data",)), made, repository)


# ---- leaks ----


def leaks_of(
    prepared: Checkout, places: list[Path], cache: Path, hidden: Sequence[Path] = ()
) -> tuple[checkout.Leak, ...]:
    return checkout.leak_scan([prepared], places, cache, hidden)[prepared.task.id]


def scan(prepared: Checkout, place: Path, cache: Path) -> list[str]:
    leaks.fingerprint.cache_clear()  # as in a process of its own
    return [leak.path for leak in leaks_of(prepared, [place], cache)]


@pytest.fixture
def exposed(tmp_path: Path) -> Path:
    folder = tmp_path / "exposed"
    folder.mkdir()
    return folder


def test_case_12_the_answer_is_found_wherever_it_lies(prepared: Checkout, exposed: Path, cache: Path) -> None:
    wheel = exposed / "pip-cache" / "parcel.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("parcel/rates.py", MODULE)
    (exposed / "parcel-1.0.tar.gz").write_bytes(sdist("parcel", "1.0"))
    (exposed / "page.gz").write_bytes(gzip.compress(MODULE.encode()))
    (exposed / "copy.txt").write_text("x" * 10_003 + MODULE.replace("    ", "\t\t"))
    (exposed / "notes.json").write_text(json.dumps({"answer": BODY}))
    compiled = exposed / "site-packages/parcel/__pycache__/rates.cpython-311.pyc"
    compiled.parent.mkdir(parents=True)
    compiled.write_bytes(b"\0compiled")
    (exposed / "innocent.py").write_text("weights = []\nfor item in items:\n    return None\n")
    assert sorted(scan(prepared, exposed, cache)) == sorted(
        [
            f"{wheel}!parcel/rates.py",
            f"{exposed}/parcel-1.0.tar.gz!parcel-1.0/parcel/rates.py",
            f"{exposed}/page.gz!",
            f"{exposed}/copy.txt",
            f"{exposed}/notes.json",
            str(compiled),
        ]
    )


def test_an_answer_across_the_blocks_that_are_read_is_found(
    prepared: Checkout, exposed: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (exposed / "copy.txt").write_text(MODULE)
    monkeypatch.setattr("benchmarks.lab.checkout.leaks._BLOCK", 16)
    assert scan(prepared, exposed, cache) == [f"{exposed}/copy.txt"]


def test_folders_that_are_hidden_inside_are_left_out(prepared: Checkout, exposed: Path, cache: Path) -> None:
    (exposed / "site-packages").mkdir()
    (exposed / "site-packages/parcel.py").write_text(MODULE)
    assert leaks_of(prepared, [exposed], cache, hidden=[exposed / "site-packages"]) == ()
    assert len(leaks_of(prepared, [exposed], cache)) == 1


def test_one_ordinary_line_is_no_leak(prepared: Checkout, exposed: Path, cache: Path) -> None:
    (exposed / "a.py").write_text("surcharge = sum(weight // 1000 for weight in weights)\n")
    assert scan(prepared, exposed, cache) == []


def test_a_scan_is_kept_until_something_changes(
    prepared: Checkout, exposed: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert scan(prepared, exposed, cache) == []
    with monkeypatch.context() as no_scan:
        no_scan.setattr("benchmarks.lab.checkout.leaks.scan", None)
        assert scan(prepared, exposed, cache) == []
    (exposed / "new.py").write_text(MODULE)
    assert scan(prepared, exposed, cache) == [f"{exposed}/new.py"]


def test_a_copy_inside_the_target_itself_is_a_leak(repository: Path, tmp_path: Path, cache: Path) -> None:
    (repository / "build").mkdir()
    (repository / "build/rates.py").write_text(MODULE)
    git(repository, "add", "-A", "-f")
    git(repository, "commit", "-q", "-m", "built")
    made = checkout.prepare(target_at(repository), TASK, ENVIRONMENT, tmp_path / "w")
    assert [leak.path for leak in leaks_of(made, [], cache)] == ["build/rates.py"]


def test_unreadable_and_odd_files_do_not_end_the_scan(prepared: Checkout, exposed: Path, cache: Path) -> None:
    os.mkfifo(exposed / "fifo")
    (exposed / "broken.zip").write_bytes(b"PK\3\4 no archive")
    (exposed / "broken.tar.gz").write_bytes(b"\x1f\x8b no archive")
    (exposed / "loop").symlink_to(exposed)
    (exposed / "z.py").write_text(MODULE)
    assert scan(prepared, exposed, cache) == [f"{exposed}/z.py"]


# ---- patches ----


def test_only_allowed_paths_make_the_patch(prepared: Checkout) -> None:
    work = prepared.workspace
    (work / "parcel/rates.py").write_text(MODULE.replace("surcharge", "extra"))
    (work / "parcel/other.py").write_text("x")
    (work / "data/dos.txt").write_text("one\ntwo\n")
    (work / "link").unlink()
    patch = checkout.collect(prepared)
    assert list(patch.files) == ["parcel/rates.py"]
    assert (patch.lines_added, patch.lines_removed) == (3, 1)
    assert patch.diff.startswith(b"--- a/parcel/rates.py\n+++ b/parcel/rates.py\n")
    assert patch.touched_other == ("data/dos.txt", "link", "parcel/other.py")
    assert patch.touched_tests == ()
    assert patch.unreadable == ()


def test_an_untouched_workspace_gives_an_empty_patch(prepared: Checkout) -> None:
    patch = checkout.collect(prepared)
    assert (patch.files, patch.diff, patch.touched_other, patch.touched_tests) == ({}, b"", (), ())


def test_case_14_tests_and_configuration_are_flagged_and_left_out(prepared: Checkout) -> None:
    for name in ("tests/test_rates.py", "conftest.py", "pyproject.toml", "sitecustomize.py"):
        (prepared.workspace / name).write_text("x")
    (prepared.workspace / "tests/test_new.py").write_text("x")
    patch = checkout.collect(prepared)
    assert patch.files == {}
    assert patch.touched_tests == (
        "conftest.py",
        "pyproject.toml",
        "sitecustomize.py",
        "tests/test_new.py",
        "tests/test_rates.py",
    )


def test_case_11_what_running_the_suite_leaves_is_no_change(prepared: Checkout) -> None:
    for name in ("parcel/__pycache__/a.pyc", ".pytest_cache/v/x", ".venv/lib/y.py", "node_modules/z/index.js", "b.pyc"):
        path = prepared.workspace / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    git(prepared.workspace, "commit", "-q", "--allow-empty", "-m", "by the agent")
    patch = checkout.collect(prepared)
    assert (patch.files, patch.touched_other, patch.touched_tests) == ({}, (), ())


def test_case_10_a_deleted_workspace_is_every_file_deleted(prepared: Checkout) -> None:
    remove_tree(prepared.workspace)
    patch = checkout.collect(prepared)
    assert patch.files == {"parcel/rates.py": None}
    assert "latin.py" in patch.touched_other


@pytest.mark.parametrize("kind", ["fifo", "link", "folder link", "folder", "huge"])
def test_case_10_an_allowed_path_that_is_no_plain_file_is_not_read(
    prepared: Checkout, tmp_path: Path, kind: str
) -> None:
    path = prepared.workspace / "parcel/rates.py"
    secret = tmp_path / "rates.py"
    secret.write_text("outside")
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(secret)
    elif kind == "folder link":
        remove_tree(path.parent)
        path.parent.symlink_to(tmp_path)
    elif kind == "folder":
        path.mkdir()
    else:
        with path.open("wb") as file:
            file.truncate(1 << 30)
    patch = checkout.collect(prepared)
    assert patch.files == {}
    assert patch.unreadable[0].startswith("parcel/rates.py (")


def test_case_10_a_hundred_thousand_files_are_looked_at_up_to_a_bound(
    prepared: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.lab.checkout.patch.ENTRIES_LIMIT", 50)
    for number in range(200):
        (prepared.workspace / f"f{number}").touch()
    patch = checkout.collect(prepared)
    assert any("more than 50 files" in path for path in patch.touched_other)
    assert len(patch.touched_other) <= 100


def test_case_10_names_that_are_not_text_and_special_files_are_listed(prepared: Checkout) -> None:
    (prepared.workspace / os.fsdecode(b"new-\xfe")).touch()
    os.mkfifo(prepared.workspace / "pipe")
    patch = checkout.collect(prepared)
    assert patch.touched_other == ("new-\\xfe",)
    assert patch.unreadable == ("pipe",)


def test_a_fresh_copy_for_judging_has_no_git(prepared: Checkout, tmp_path: Path) -> None:
    checkout.copy_excised(prepared, tmp_path / "fresh")
    assert not (tmp_path / "fresh/.git").exists()
    assert (tmp_path / "fresh/.gitignore").is_file()
    assert excised_tree(prepared.target, TASK).removed["parcel/rates.py"].removed_lines == 3

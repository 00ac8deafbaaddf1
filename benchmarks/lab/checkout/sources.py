"""Fetch what a target is pinned to, and export it as a plain tree.

Kinds: `pypi` (the sdist), `git` (a bare clone), `path` (a person's own repository: read through git's objects, never
checked out, never written to). Everything fetched is kept by digest, so a second run needs no network.

How an sdist is found: `uv pip compile --format pylock.toml` names the file's address and digest. uv is the one tool
that is always there, and it reads the person's index settings (UV_INDEX, uv.toml, mirrors, keyring), so nothing here
knows an index. `pip download` was not chosen: pip may be missing, and for an sdist it builds the package's metadata,
running its code and fetching its build tools. The file itself comes by httpx, which honours the proxy variables.
"""

from __future__ import annotations

import hashlib
import netrc
import os
import shutil
import ssl
import tarfile
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import certifi
import filelock
import httpx

from benchmarks.lab.checkout.commands import CommandFailed, git, run, uv_program
from benchmarks.lab.errors import LabError, UsageError
from benchmarks.lab.fsio import write_atomic
from benchmarks.lab.model import Source, Target
from benchmarks.lab.text import Say, digest_of

_INDEX_VARIABLES: Final = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL")


def fetch(source: Source, cache: Path, say: Say) -> Path:
    """Return the local copy of `source`: an archive, a bare clone, or the person's repository itself.

    Raises UsageError for a digest, version, commit or folder that is not there, LabError when it is neither cached nor
    reachable; both name the field of the source.
    """
    return _FETCH[source.kind](source, cache, say)


def export(target: Target, cache: Path, say: Say) -> tuple[Path, str]:
    """Return (folder, digest) of the target's pinned tree, exported once and kept; the folder is for reading only."""
    key = digest_of(repr(_identity(target.source)))
    place = cache / "trees" / key
    with filelock.FileLock(_made(cache / "trees") / f"{key}.lock"):
        if not (place / "digest").is_file():
            _export_fresh(target, place, cache, say)
    return place / "tree", (place / "digest").read_text()


def source_state(source: Source) -> str | None:
    """Digest of head and status of a `path:` source, to prove that it was left as it was; None for other kinds."""
    if source.kind != "path":
        return None
    repository = Path(source.path or "").expanduser()
    head = git("rev-parse", "HEAD", cwd=repository)
    return digest_of(head + git("status", "--porcelain=v2", "-z", "--untracked-files=all", cwd=repository))


# ---- pypi ----


def _fetch_pypi(source: Source, cache: Path, say: Say) -> Path:
    pin = f"{source.name}=={source.version}"
    kept = _made(cache / "sources") / f"{source.sha256}.tar.gz"
    if kept.is_file():
        return kept
    say(f"fetching {pin}")
    content = _download(_sdist_address(pin), pin)
    if (found := digest_of(content)) != source.sha256:
        raise UsageError(
            f"source.sha256: the sdist of {pin} has {found}, not {source.sha256}; check the pin before use"
        )
    write_atomic(kept, content)
    return kept


def _sdist_address(pin: str) -> str:
    with tempfile.TemporaryDirectory() as elsewhere:  # no project's own constraints apply there
        argv = [uv_program(), "pip", "compile", "--quiet", "--no-deps", "--no-header", "--format", "pylock.toml", "-"]
        try:
            lock = tomllib.loads(run(argv, cwd=Path(elsewhere), stdin=pin.encode()).decode())
        except CommandFailed as failure:
            raise LabError(
                f"source: {pin} is not in the cache and the package index did not answer for it: {failure.detail}"
            ) from failure
        package: dict[str, Any] = lock["packages"][0]
        sdist = package.get("sdist")
        if not sdist:
            raise UsageError(f"source.version: the index has no sdist of {pin}; choose a version that has one")
        return str(sdist.get("url") or Path(elsewhere, sdist["path"]).resolve().as_uri())


def _download(address: str, pin: str) -> bytes:
    if address.startswith("file:"):
        return Path(unquote(urlsplit(address).path)).read_bytes()
    trust = ssl.create_default_context()  # the system's certificates, where companies put theirs
    trust.load_verify_locations(os.environ.get("SSL_CERT_FILE") or certifi.where())
    try:
        with httpx.Client(follow_redirects=True, verify=trust, timeout=60, auth=_credentials(address)) as web:
            return web.get(address).raise_for_status().content
    except httpx.HTTPError as failure:
        raise LabError(f"source: {pin} is not in the cache and could not be downloaded: {failure}") from failure


def _credentials(address: str) -> tuple[str, str] | None:
    """User and password for the host of `address`: of an index address in the environment, else of ~/.netrc."""
    host = urlsplit(address).hostname or ""
    for word in " ".join(os.environ.get(name, "") for name in _INDEX_VARIABLES).split():
        parts = urlsplit(word.rpartition("=")[2] if "=" in word.partition(":")[0] else word)
        if parts.hostname == host and parts.username:
            return unquote(parts.username), unquote(parts.password or "")
    try:
        found = netrc.netrc().authenticators(host)
    except (OSError, netrc.NetrcParseError):
        return None
    return (found[0], found[2]) if found else None


# ---- git and path ----


def _fetch_git(source: Source, cache: Path, say: Say) -> Path:
    url, commit = str(source.url), str(source.commit)
    bare = cache / "sources" / f"git-{digest_of(url)[:16]}"
    with filelock.FileLock(_made(cache / "sources") / f"{bare.name}.lock"):
        if not bare.is_dir():
            git("init", "--quiet", "--bare", "--template=", bare, cwd=cache)
        if not _has_commit(bare, commit):
            say(f"fetching {url}")
            _fetch_commit(bare, url, commit)
    return bare


def _fetch_commit(bare: Path, url: str, commit: str) -> None:
    """The commit alone where the server gives it; else all its branches and tags."""
    for what in (["--depth=1", url, commit], [url, "+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"]):
        try:
            git("fetch", "--quiet", *what, cwd=bare)
        except CommandFailed as failure:
            problem = failure.detail
        else:
            if _has_commit(bare, commit):
                return
            problem = "it has no such commit"
    raise LabError(
        f"source.commit: {commit} is not in the cache and could not be fetched from source.url {url}: {problem}"
    )


def _fetch_path(source: Source, cache: Path, say: Say) -> Path:
    repository = Path(str(source.path)).expanduser()
    if not repository.is_dir():
        raise UsageError(f"source.path: {repository} is not a folder")
    try:
        git("rev-parse", "--git-dir", cwd=repository)
    except CommandFailed as failure:
        raise UsageError(f"source.path: git does not read {repository}: {failure.detail}") from failure
    if not _has_commit(repository, str(source.commit)):
        raise UsageError(f"source.commit: {source.commit} is not in the repository {repository}")
    return repository


def _has_commit(repository: Path, commit: str) -> bool:
    try:
        git("cat-file", "-e", f"{commit}^{{commit}}", cwd=repository)
    except CommandFailed:
        return False
    return True


# ---- export ----


def _identity(source: Source) -> tuple[str, ...]:
    fixed = source.sha256 if source.kind == "pypi" else source.commit
    return (source.kind, str(fixed), str(source.url or source.path or source.name))


def _export_fresh(target: Target, place: Path, cache: Path, say: Say) -> None:
    fetched = fetch(target.source, cache, say)
    shutil.rmtree(place, ignore_errors=True)
    tree = _made(place / "tree")
    if target.source.kind == "pypi":
        _unpack(fetched, tree)
    else:
        for mode, name, content in _blobs(fetched, str(target.source.commit)):
            _lay(tree, mode, name, content)
    write_atomic(place / "digest", tree_digest(tree))


def _unpack(archive: Path, tree: Path) -> None:
    """Lay the archive's files below `tree`, without the one top folder of an sdist.

    By hand, since `extract` learned to refuse what leads out of its folder only in Python 3.11.4.
    """
    try:
        with tarfile.open(archive) as packed:
            for member in packed.getmembers():
                _, _, name = member.name.partition("/")
                content = packed.extractfile(member) if member.isreg() or member.islnk() else None
                if _leads_out(Path(name)) or (member.issym() and _leads_out(Path(name).parent / member.linkname)):
                    raise LabError(f"source: {archive.name} holds {member.name}, which leads out of it")
                if member.issym():
                    _lay(tree, "120000", os.fsencode(name), os.fsencode(member.linkname))
                elif content is not None:
                    _lay(tree, "100755" if member.mode & 0o100 else "100644", os.fsencode(name), content.read())
    except (tarfile.TarError, OSError, KeyError) as failure:
        raise LabError(f"source: {archive.name} cannot be unpacked: {failure}") from failure


def _leads_out(path: Path) -> bool:
    """Whether a path in an archive does not stay below its top: absolute, or up and out."""
    return path.is_absolute() or Path(os.path.normpath(path)).parts[:1] == ("..",)


def _blobs(repository: Path, commit: str) -> Iterator[tuple[str, bytes, bytes]]:
    """(mode, name, content) of every file of a commit, as stored: no attribute, filter or line-end rule applies."""
    listed = [row.partition(b"\t") for row in git("ls-tree", "-r", "-z", commit, cwd=repository).split(b"\0") if row]
    files = [(*head.split()[::2], name) for head, _, name in listed]
    wanted = b"\n".join(oid for mode, oid, _ in files if mode != b"160000")
    stream = git("cat-file", "--batch", cwd=repository, stdin=wanted + b"\n")
    position = 0
    for mode, _, name in files:
        if mode == b"160000":  # a submodule: its commit is another repository's
            yield mode.decode(), name, b""
            continue
        line_end = stream.index(b"\n", position)
        size = int(stream[position:line_end].split()[2])
        yield mode.decode(), name, stream[line_end + 1 : line_end + 1 + size]
        position = line_end + size + 2


def _lay(tree: Path, mode: str, name: bytes, content: bytes) -> None:
    path = tree / os.fsdecode(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    if mode == "160000":
        path.mkdir()
    elif mode == "120000":
        path.symlink_to(os.fsdecode(content))
    else:
        path.write_bytes(content)
        path.chmod(0o755 if mode == "100755" else 0o644)


def tree_digest(tree: Path) -> str:
    """Digest of names, kinds, executable bits and contents below `tree`, whatever its place and times."""
    total = hashlib.sha256()
    for folder, folders, files in os.walk(tree):
        folders.sort()
        links = [name for name in folders if Path(folder, name).is_symlink()]
        for name in sorted(files + links):
            path = Path(folder, name)
            kind = b"l" if path.is_symlink() else b"x" if path.stat().st_mode & 0o100 else b"f"
            content = os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes()
            total.update(b"%b %b %b\0" % (kind, digest_of(content).encode(), os.fsencode(path.relative_to(tree))))
    return total.hexdigest()


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


_FETCH: Final[dict[str, Callable[[Source, Path, Say], Path]]] = {
    "pypi": _fetch_pypi,
    "git": _fetch_git,
    "path": _fetch_path,
}

"""The lab file: named backends, defaults and budgets, read strictly from YAML.

`lab.yaml` is shipped; `lab.local.yaml` (or the file LAB_FILE names) is merged over it: entry by entry, setting by
setting, `sampler` and `options` as a whole. An unknown or doubled key, a wrong type or a key in a URL is one sentence
that names file and line; values are never repeated, they might be secrets. Documented in docs/lab-file.md.
It does not know which engines and clients exist (their tables do), and reads no environment but LAB_FILE.
"""

from __future__ import annotations

import os
import re
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

import msgspec

from benchmarks.lab import yamlfile
from benchmarks.lab.errors import UsageError
from benchmarks.lab.model import Backend, Budgets, Isolation, Order, Record, RewriteName, SamplerName
from benchmarks.lab.text import digest_of_json, listing, suggest
from benchmarks.lab.yamlfile import At, plain

R = TypeVar("R", bound=Record)

SHIPPED: Final = "lab.yaml"
LOCAL: Final = "lab.local.yaml"
VARIABLE: Final = "LAB_FILE"
TIERS: Final = (1, 2, 3, 4)
REWRITES: Final[tuple[str, ...]] = get_args(RewriteName)
SAMPLER_NAMES: Final[tuple[str, ...]] = get_args(SamplerName)
MOST_DAYS: Final = 36_500  # a century: more seconds than that no clock here can count back

# Merged as a whole: half a sampler from one file and half from another is nobody's choice.
_WHOLE: Final = frozenset({"sampler", "options"})
_SECRET: Final = re.compile(r"api.?key(?!_env$)|(^|[_-])(token|key|auth)$|secret|passw|authorization|bearer", re.I)
_VARIABLE_NAME: Final = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
_ENTRY_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class Defaults(Record, frozen=True, kw_only=True):
    """What a run takes when no flag says otherwise."""

    backends: tuple[str, ...] = ("embedded",)
    clients: tuple[str, ...] = ("opencode",)
    demo_tags: tuple[str, ...] = ("starter",)  # of the tasks, where every backend is a demo; else the whole suite
    trials: int = 1
    order: Order = "interleaved"
    isolation: Isolation | None = None  # None: the best this machine has


class Lab(Record, frozen=True, kw_only=True):
    """The merged lab file. `tiers` holds the budgets of every tier, `digest` is of all that can move numbers."""

    backends: Mapping[str, Backend]
    defaults: Defaults
    budgets: Budgets
    tiers: Mapping[int, Budgets]
    evidence_days: int
    digest: str
    files: tuple[Path, ...]


SECTIONS: Final = ("backends", "defaults", "budgets", "evidence_days")
BUDGET_PARTS: Final = ("default", "tiers")


# ---- for programs ----


def files(root: Path, environ: Mapping[str, str] | None = None) -> tuple[Path, ...]:
    """The lab files of a checkout in the order they are merged. UsageError if LAB_FILE names none."""
    named = (os.environ if environ is None else environ).get(VARIABLE)
    if not named:
        return (root / SHIPPED, root / LOCAL) if (root / LOCAL).is_file() else (root / SHIPPED,)
    try:
        own = Path(named).expanduser()
        str(own).encode()
        found = own.is_file()
    except (OSError, ValueError, RuntimeError):  # too long a name, one that is no text, an unknown user's home
        found = False
    if not found:
        raise UsageError(f"the variable {VARIABLE} names {named!r}, which is no file; correct or unset it")
    return (root / SHIPPED, own)


def load(*paths: Path) -> Lab:
    """Read and merge lab files, later over earlier. UsageError names file and line of the first mistake."""
    merged = At(value={}, where=str(paths[0]))
    for path in paths:
        merged = _merge(merged, yamlfile.read(path))
    top = _mapping(merged, "the lab file", SECTIONS)
    backends = _backends(top.get("backends"))
    defaults = _record(top.get("defaults"), Defaults, "defaults")
    budgets, tiers = _budgets(top.get("budgets"))
    _known_backends(top.get("defaults"), defaults, backends)
    return Lab(
        backends=backends,
        defaults=defaults,
        budgets=budgets,
        tiers=tiers,
        evidence_days=_days(top.get("evidence_days")),
        digest=digest_of_json([backends, defaults, budgets, [tiers[tier] for tier in TIERS]]),
        files=paths,
    )


def find_backend(lab: Lab, name: str) -> Backend:
    """The backend of that name; UsageError with a suggestion if the lab file has none."""
    if name not in lab.backends:
        known = listing(lab.backends, 12)
        alone = len(lab.files) == 1
        read = f"there is no {lab.files[0].with_name(LOCAL)}" if alone else f"read from {listing(map(str, lab.files))}"
        raise UsageError(
            f"--backend {name}: the lab file has no such entry{suggest(name, lab.backends)}; it has {known} ({read})"
        )
    return lab.backends[name]


def base_url(url: str, what: str) -> str:
    """A server's address without a trailing slash or /v1. UsageError begins with `what`, the place where it stands.

    The address is never repeated in a message, since it may hold a key.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise UsageError(f"{what} is no URL; write it like http://127.0.0.1:8080") from None
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise UsageError(
            f"{what} holds more than host and port, perhaps a key: put a key into an environment variable and name "
            "that in `api_key_env`"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{what} must begin with http:// or https:// and name a host")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    path = re.sub(r"/v1/?$", "", parts.path).rstrip("/")
    return f"{parts.scheme}://{host}{f':{port}' if port else ''}{path}"


# ---- merging ----


def _merge(under: At, over: At) -> At:
    if isinstance(under.value, dict) and over.value is None:
        return under  # a heading whose entries are all commented out
    if not (isinstance(under.value, dict) and isinstance(over.value, dict)):
        return over
    merged = dict(under.value)
    for name, entry in over.value.items():
        merged[name] = _merge(merged[name], entry) if name in merged and name not in _WHOLE else entry
    return At(value=merged, where=over.where)


# ---- values to records ----


def _backends(at: At | None) -> dict[str, Backend]:
    entries = _mapping(at, "backends") if at is not None else {}
    return {name: _backend(name, entry) for name, entry in entries.items()}


def _backend(name: str, at: At) -> Backend:
    if not _ENTRY_NAME.fullmatch(name):
        raise UsageError(f"{at.where}: the name of a backend is made of letters, digits, dots, dashes and underscores")
    what = f"backend {name}"
    entries = _mapping(at, what, _settings(Backend, "name"))
    if not entries:
        raise UsageError(f"{at.where}: {what} is empty; its settings stand below it, further to the right")
    if "engine" not in entries:
        raise UsageError(f"{at.where}: {what} needs `engine:`, the program that serves it")
    if (secret := _secret_option(entries.get("options"))) is not None:
        raise UsageError(f"{secret}: a key may not stand in the lab file; name a variable in `api_key_env`")
    backend = _record(at, Backend, what, name=name)
    if (key := entries.get("api_key_env")) is not None and not _VARIABLE_NAME.fullmatch(backend.api_key_env or ""):
        raise UsageError(
            f"{key.where}: `api_key_env` of {what} is the NAME of an environment variable, like MY_API_KEY, "
            "never the key itself"
        )
    _check_sampler(entries.get("sampler"), what)
    _check_rewrites(backend, entries, what)
    if (url := entries.get("base_url")) is not None and backend.base_url is not None:
        cleaned = base_url(backend.base_url, f"{url.where}: `base_url` of {what}")
        return msgspec.structs.replace(backend, base_url=cleaned)
    return backend


def _check_sampler(at: At | None, what: str) -> None:
    """Engines ignore a parameter that they do not know: a misspelled one would be on every row and in no request."""
    for name, entry in at.value.items() if at is not None else ():
        if name not in SAMPLER_NAMES:
            hint = f"{suggest(name, SAMPLER_NAMES)}; known: {', '.join(SAMPLER_NAMES)}"
            raise UsageError(f"{entry.where}: `sampler` of {what} names no sampling parameter{hint}")


def _check_rewrites(backend: Backend, entries: Mapping[str, At], what: str) -> None:
    for name in backend.rewrite:
        where = entries["rewrite"].where
        if name not in REWRITES:
            hint = suggest(name, REWRITES)
            raise UsageError(f"{where}: `rewrite` of {what} names an unknown edit{hint}; known: {', '.join(REWRITES)}")
        if name in ("sampler", "max_tokens") and not getattr(backend, name):
            raise UsageError(f"{where}: `rewrite: [{name}]` of {what} needs the setting `{name}` to pin")


def _secret_option(at: At | None) -> str | None:
    if at is None or not isinstance(at.value, dict):
        return None
    entries: dict[str, At] = at.value
    for name, entry in entries.items():
        if _SECRET.search(name):
            return entry.where
        if (deeper := _secret_option(entry)) is not None:
            return deeper
    return None


def _budgets(at: At | None) -> tuple[Budgets, dict[int, Budgets]]:
    parts = _mapping(at, "budgets", BUDGET_PARTS) if at is not None else {}
    default = parts.get("default")
    tiers = _mapping(parts["tiers"], "budgets.tiers", tuple(map(str, TIERS))) if "tiers" in parts else {}
    budgets = _record(default, Budgets, "budgets.default")
    found = {}
    for tier in TIERS:
        own = tiers.get(str(tier))
        both = _merge(default, own) if default is not None and own is not None else own or default
        found[tier] = _record(both, Budgets, f"budgets.tiers.{tier}")
    return budgets, found


def _days(at: At | None) -> int:
    if at is None:
        return 30
    if type(at.value) is not int or not 0 <= at.value <= MOST_DAYS:
        raise UsageError(f"{at.where}: `evidence_days` must be a whole number of days, 0 to {MOST_DAYS}")
    return at.value


def _known_backends(at: At | None, defaults: Defaults, backends: Mapping[str, Backend]) -> None:
    for name in defaults.backends:
        if name not in backends:
            where = at.value["backends"].where if at is not None and "backends" in at.value else SHIPPED
            raise UsageError(
                f"{where}: `backends` of defaults names an entry that is not there{suggest(name, backends)}; there "
                f"are {listing(backends, 12)}"
            )


def _mapping(at: At, what: str, known: tuple[str, ...] | None = None) -> dict[str, At]:
    """The entries of a mapping, all of them known ones."""
    if at.value is None:
        return {}
    if not isinstance(at.value, dict):
        raise UsageError(f"{at.where}: {what} must be settings with their values, not {_kind(at.value)}")
    for name, entry in at.value.items():
        if known is not None and name not in known:
            if _SECRET.search(name):
                raise UsageError(
                    f"{entry.where}: a key may not stand in the lab file; name a variable in `api_key_env`"
                )
            raise UsageError(f"{entry.where}: `{name}` is no setting of {what}{_right_place(name, entry, known)}")
    return at.value


def _right_place(name: str, entry: At, known: tuple[str, ...]) -> str:
    """What an unknown name may be meant for, or where it belongs."""
    if "sampler" in known and name in SAMPLER_NAMES:
        return f"; it belongs into its `sampler:`, like `sampler: {{{name}: ...}}`"
    hint = f"{suggest(name, known)}; known: {listing(known, 30)}"
    if known is SECTIONS and isinstance(entry.value, dict | None):
        hint += "; a backend stands below `backends:`, further to the right"
    return hint


def _settings(record: type[Record], *fixed: str) -> tuple[str, ...]:
    return tuple(name for name in record.__struct_fields__ if name not in fixed)


def _record(at: At | None, record: type[R], what: str, **fixed: Any) -> R:
    """A record of the settings at `at`, each checked by itself so that its own line can be named."""
    entries = _mapping(at, what, _settings(record, *fixed)) if at is not None else {}
    hints = get_type_hints(record)
    for name, entry in entries.items():
        value = plain(entry)
        try:
            msgspec.convert(value, hints[name])
        except msgspec.ValidationError:
            got = _hint(hints[name], value) or f", not {_kind(entry.value)}"
            raise UsageError(f"{entry.where}: `{name}` of {what} must be {wanted(hints[name])}{got}") from None
        if isinstance(value, int | float) and not isinstance(value, bool) and not value > 0:
            raise UsageError(f"{entry.where}: `{name}` of {what} must be greater than 0")
    return msgspec.convert({**{name: plain(entry) for name, entry in entries.items()}, **fixed}, record)


def _kind(value: Any) -> str:
    words: dict[type, str] = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list"}
    words |= {dict: "a group of settings", type(None): "nothing"}
    return words.get(type(value), "a date")


def wanted(hint: Any) -> str:
    """A setting's type in words: `a whole number`, `one of never, arm, trial`."""
    arguments = get_args(hint)
    simple: dict[Any, str] = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
    if hint in simple:
        return simple[hint]
    origin = get_origin(hint)
    if origin is Literal:
        return "one of " + ", ".join(arguments)
    if origin in (Union, types.UnionType):
        return wanted(next(argument for argument in arguments if argument is not type(None)))
    if origin is tuple:
        return "a list of text, like [a, b]"
    return "a group of settings, like {temperature: 0.7}"


def _hint(hint: Any, value: Any) -> str:
    words = [word for part in (hint, *get_args(hint)) if get_origin(part) is Literal for word in get_args(part)]
    return suggest(value, words) if isinstance(value, str) else ""

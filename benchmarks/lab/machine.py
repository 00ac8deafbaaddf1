"""The machine: its id (chip, memory, model), its folder, and what it tells of power, heat and pressure at a moment.

The id is computed, stable across reboots and holds no serial number, host name or user name: two machines of one make
and size share it. Linux and macOS; only what any user may read. It measures nothing and knows nothing of engines.
Sources: /proc/cpuinfo, /proc/meminfo, /proc/pressure, /sys/class/dmi/id, /sys/class/power_supply, device tree; macOS:
sysctl, sw_vers, pmset.
"""

from __future__ import annotations

import math
import os
import platform
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import psutil
import yaml

from benchmarks.lab import fsio, proc, yamlfile
from benchmarks.lab.errors import LabError, UsageError
from benchmarks.lab.model import Record
from benchmarks.lab.paths import checkout_root
from benchmarks.lab.text import digest_of

GIB: Final = 1 << 30
TOOL_SECONDS: Final = 5.0
LABEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")
# What makers leave in the field when they did not fill it in.
_NO_MODEL: Final = frozenset({"", "none", "default string", "to be filled by o.e.m.", "system product name", "unknown"})


class Machine(Record, frozen=True, kw_only=True):
    """One computer. Sizes in bytes; None where it does not tell."""

    id: str  # names its folder below hardware/
    label: str  # short form on output lines
    os: str
    kernel: str
    arch: str
    chip: str | None
    model: str | None
    memory_bytes: int  # rounded up to an installable size
    memory_limit_bytes: int | None  # of the container, if one is set
    cores: int  # logical processors this process may use
    gpus: tuple[str, ...] | None = None


class Facts(Record, frozen=True, kw_only=True):
    """What the id is made of."""

    system: str  # linux, macos
    arch: str
    chip: str | None
    model: str | None
    memory_bytes: int


Run = Callable[[tuple[str, ...]], str | None]


def run_tool(argv: tuple[str, ...]) -> str | None:
    """Standard output of a small system tool, None if it is missing or fails."""
    try:
        done = proc.run_quiet(argv, TOOL_SECONDS)
        return done.stdout.decode() if done.code == 0 else None
    except (LabError, UnicodeDecodeError):
        return None


# ---- identity ----


def describe(hardware: Path | None = None) -> Machine:
    """This machine. A person's `label:` in hardware/<id>/machine.yaml is taken over; UsageError if it is unfit."""
    found = facts()
    name = hardware_id(found)
    folder = (hardware or checkout_root() / "hardware") / name
    return Machine(
        id=name,
        label=_label_of(folder / "machine.yaml") or default_label(found),
        os=_os_name(),
        kernel=platform.release(),
        arch=found.arch,
        chip=found.chip,
        model=found.model,
        memory_bytes=found.memory_bytes,
        memory_limit_bytes=_memory_limit(Path("/sys/fs/cgroup")),
        cores=_usable_cores(),
        gpus=_gpus(Path("/proc/driver/nvidia/gpus")),
    )


def facts() -> Facts:
    """Read what the id is made of."""
    memory = installed_memory(psutil.virtual_memory().total)
    if platform.system() == "Darwin":
        return mac_facts(run_tool, platform.machine(), memory)
    return linux_facts(Path("/"), platform.machine(), memory)


def linux_facts(root: Path, arch: str, memory_bytes: int) -> Facts:
    """Facts of a Linux machine whose /proc and /sys stand below `root`."""
    board = _read(root / "proc/device-tree/model") or _read(root / "sys/firmware/devicetree/base/model")
    dmi = root / "sys/class/dmi/id"
    model = _model(_read(dmi / "product_name"), _read(dmi / "sys_vendor"), board)
    return Facts(
        system="linux",
        arch=arch,
        chip=linux_chip(_read(root / "proc/cpuinfo") or "") or board,
        model=model,
        memory_bytes=memory_bytes,
    )


def mac_facts(run: Run, arch: str, memory_bytes: int) -> Facts:
    """Facts of a Mac, asked through sysctl."""

    def ask(name: str) -> str | None:
        return (run(("/usr/sbin/sysctl", "-n", name)) or "").strip() or None

    return Facts(
        system="macos",
        arch=arch,
        chip=ask("machdep.cpu.brand_string"),
        model=ask("hw.model"),
        memory_bytes=memory_bytes,
    )


def linux_chip(cpuinfo: str) -> str | None:
    """The processor's name from /proc/cpuinfo; on ARM, which tells none, its implementer and part numbers."""
    entries: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            entries.setdefault(name.strip(), value.strip())
    if told := entries.get("model name") or entries.get("cpu model"):
        return told
    if "CPU implementer" in entries and "CPU part" in entries:
        return f"ARM {entries['CPU implementer']}-{entries['CPU part']}"
    return None


def installed_memory(total: int) -> int:
    """Round `total` bytes up to an installable size: to a sixteenth of the power of two above it.

    Kernels and firmware keep a part of the memory for themselves, and not the same part after each update: 23.4 and
    23.5 GiB are both a machine of 24.
    """
    step = max((1 << math.ceil(math.log2(total))) // 16, 1)
    return math.ceil(total / step) * step


def hardware_id(found: Facts) -> str:
    """Readable id with a short hash: `linux-x86_64-amd-epyc-24g-1a2b3c`."""
    raw = "\0".join((found.system, found.arch, found.chip or "", found.model or "", str(found.memory_bytes)))
    short = digest_of(raw)[:6]
    return f"{found.system}-{found.arch}-{chip_slug(found.chip)}-{_size(found.memory_bytes)}-{short}"


def default_label(found: Facts) -> str:
    """Short form of the id, made for reading: `epyc-24g`, `m5-max-128g`."""
    short = re.sub(r"^(amd|intel|apple|arm)-", "", chip_slug(found.chip))
    return f"{short[:20].strip('-')}-{_size(found.memory_bytes)}"


def chip_slug(chip: str | None) -> str:
    """`Intel(R) Core(TM) i7-8650U CPU @ 1.90GHz` -> `intel-core-i7-8650u`."""
    text = re.sub(r"\((r|tm|c)\)", " ", (chip or "unknown-chip").lower())
    text = re.sub(r"@.*|\bw/.*|\bwith radeon.*|\b\d+-core\b.*|\b(cpu|processor)\b", " ", text)
    return re.sub(r"[^a-z0-9]+", "-", text).strip("-")[:40].strip("-") or "unknown-chip"


def _size(memory_bytes: int) -> str:
    return f"{memory_bytes / GIB:g}g"


def _model(product: str | None, vendor: str | None, board: str | None) -> str | None:
    if product and product.lower() not in _NO_MODEL:
        return f"{vendor} {product}" if vendor and vendor.lower() not in _NO_MODEL else product
    return board


def _read(path: Path) -> str | None:
    try:
        return path.read_bytes().decode("utf-8", "replace").strip("\0 \n") or None
    except OSError:
        return None


def _os_name() -> str:
    if platform.system() == "Darwin":
        return f"macOS {platform.mac_ver()[0]}"
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()


def _usable_cores() -> int:
    count = getattr(os, "sched_getaffinity", None)
    return len(count(0)) if count else (os.cpu_count() or 1)


def _memory_limit(cgroup: Path) -> int | None:
    """The container's own limit, as far as it is seen from inside (cgroup 2, then 1)."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        text = _read(cgroup / name)
        if text and text.isdigit() and int(text) < psutil.virtual_memory().total:
            return int(text)
    return None


def _gpus(nvidia: Path) -> tuple[str, ...] | None:
    """Names of NVIDIA cards from their driver's own files; other makers tell no name there, so none found is None."""
    texts = (_read(path) or "" for path in sorted(nvidia.glob("*/information")))
    names = [found.group(1).strip() for text in texts if (found := re.search(r"^Model:\s*(.+)$", text, re.M))]
    return tuple(names) or None


# ---- the folder ----


def record(machine: Machine, hardware: Path | None = None) -> Path:
    """Write hardware/<id>/machine.yaml if it is missing or says something else; a person's `label:` is kept."""
    path = (hardware or checkout_root() / "hardware") / machine.id / "machine.yaml"
    label = _label_of(path) or machine.label
    text = _HEADING + yaml.safe_dump(
        {
            "id": machine.id,
            "label": label,
            "chip": machine.chip,
            "model": machine.model,
            "arch": machine.arch,
            "memory_gib": machine.memory_bytes / GIB,
            "cores": machine.cores,
            "gpus": None if machine.gpus is None else list(machine.gpus),
        },
        sort_keys=False,
        allow_unicode=True,
    )
    if _read(path) != text.strip():
        _make(path.parent)
        fsio.write_atomic(path, text)
    return path


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LabError(f"{folder} cannot be made a folder: {error.strerror}; move away what is in its place") from None


_HEADING: Final = (
    "# Written by the programs (scripts/hardware_id.py). `label` is yours to change: the short form on output lines.\n"
)


def _label_of(path: Path) -> str | None:
    if not path.exists():
        return None
    found = yamlfile.plain(yamlfile.read(path))
    if not isinstance(found, dict):
        raise UsageError(f"{path} is not YAML with `id:` and `label:`; mend or delete it")
    label = found.get("label")
    if label is not None and not (isinstance(label, str) and LABEL.fullmatch(label)):
        raise UsageError(f"{path}: `label` must be up to 32 letters, digits, dots, dashes, without spaces")
    return label


# ---- the moment ----


def power() -> dict[str, str | None]:
    """`power_source` (mains, battery) and `power_mode`, None where the machine does not tell."""
    if platform.system() == "Darwin":
        return mac_power(run_tool(("/usr/bin/pmset", "-g", "batt")), run_tool(("/usr/bin/pmset", "-g")))
    return linux_power(Path("/"))


def linux_power(root: Path) -> dict[str, str | None]:
    """Power of a Linux machine whose /sys stands below `root`."""
    supplies = [_supply(path) for path in sorted((root / "sys/class/power_supply").glob("*"))]
    source = None
    if any(kind == "Mains" and online == "1" for kind, online, _ in supplies):
        source = "mains"
    elif any(kind == "Battery" and status == "Discharging" for kind, _, status in supplies):
        source = "battery"
    mode = _read(root / "sys/firmware/acpi/platform_profile") or _read(
        root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
    )
    return {"power_source": source, "power_mode": mode}


def _supply(path: Path) -> tuple[str | None, str | None, str | None]:
    # A wireless mouse is a battery too; only those that feed the system count.
    if _read(path / "scope") == "Device":
        return None, None, None
    return _read(path / "type"), _read(path / "online"), _read(path / "status")


def mac_power(batteries: str | None, settings: str | None) -> dict[str, str | None]:
    """Power of a Mac from the output of `pmset -g batt` and `pmset -g`."""
    drawn = re.search(r"drawing from '(\w+)", batteries or "")
    source = {"AC": "mains", "Battery": "battery"}.get(drawn.group(1)) if drawn else None
    low = re.search(r"^\s*(?:lowpowermode|powermode)\s+(\d)", settings or "", re.M)
    mode = {"0": "normal", "1": "low", "2": "high"}.get(low.group(1)) if low else None
    return {"power_source": source, "power_mode": mode}


def pressure(resource: str, root: Path = Path("/")) -> float | None:
    """Linux pressure stall information: percent of the last 10 s in which some task waited for `resource`."""
    found = re.search(r"^some avg10=([\d.]+)", _read(root / "proc/pressure" / resource) or "", re.M)
    return float(found.group(1)) if found else None


def thermal() -> str | None:
    """`nominal` or `throttled` where the system says so (macOS); None elsewhere."""
    return mac_thermal(run_tool(("/usr/bin/pmset", "-g", "therm"))) if platform.system() == "Darwin" else None


def mac_thermal(text: str | None) -> str | None:
    """State from the output of `pmset -g therm`."""
    if text is None:
        return None
    limits = [int(value) for value in re.findall(r"(?:CPU_Speed_Limit|CPU_Scheduler_Limit)\s*=\s*(\d+)", text)]
    if any(value < 100 for value in limits):
        return "throttled"
    return "nominal" if limits or "No thermal warning level" in text else None


def temperature_celsius() -> float | None:
    """The hottest sensor that tells, in °C."""
    read: Callable[[], Mapping[str, list[Any]]] | None = getattr(psutil, "sensors_temperatures", None)
    if read is None:
        return None
    try:
        values = [entry.current for entries in read().values() for entry in entries if entry.current]
    except (OSError, RuntimeError):
        return None
    return max(values, default=None)


def battery() -> Any | None:
    """psutil's battery record, None without one."""
    try:
        return psutil.sensors_battery()
    except (OSError, RuntimeError, AttributeError):
        return None


def uptime_seconds() -> float | None:
    """Seconds since the machine started, sleep included where the system counts it."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    try:
        return round(time.clock_gettime(boot) if boot is not None else time.time() - psutil.boot_time(), 1)
    except (OSError, RuntimeError):
        return None

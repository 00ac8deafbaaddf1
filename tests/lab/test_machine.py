"""The machine's id and what it tells: from recorded files and tool output, on Linux and macOS."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from benchmarks.lab import machine
from benchmarks.lab.errors import UsageError
from benchmarks.lab.machine import GIB, Facts, Machine


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


EPYC = "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel\t\t: 1\nmodel name\t: AMD EPYC\n\nprocessor\t: 1\n"
PI = (
    "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0b\n\n"
    "Revision\t: d04170\nSerial\t\t: 10000000deadbeef\nModel\t\t: Raspberry Pi 5 Model B Rev 1.0\n"
)


def facts(chip: str | None = "AMD EPYC", memory: float = 24, model: str | None = None) -> Facts:
    return Facts(system="linux", arch="x86_64", chip=chip, model=model, memory_bytes=int(memory * GIB))


# ---- the id ----


def test_the_id_is_readable_and_the_same_each_time() -> None:
    first, second = machine.describe(), machine.describe()
    assert first == second
    assert re.fullmatch(r"(linux|macos)-[a-z0-9_]+-[a-z0-9-]+-[\d.]+g-[0-9a-f]{6}", first.id)
    assert machine.LABEL.fullmatch(first.label)


def test_chip_memory_and_model_make_the_id_and_nothing_else_does() -> None:
    every = {machine.hardware_id(one) for one in (facts(), facts(chip="AMD EPYC 9354"), facts(memory=32))}
    assert len(every | {machine.hardware_id(facts(model="Framework Laptop 16"))}) == 4


@pytest.mark.parametrize(
    ("told", "installed"),
    [
        *((1.9, 2), (3.8, 4), (7.6, 8), (15.3, 16), (15.5, 16), (23.4, 24), (23.5, 24), (24, 24)),
        *((31.2, 32), (62.7, 64), (125.7, 128), (128, 128), (251.5, 256)),
    ],
)
def test_memory_is_rounded_to_an_installable_size(told: float, installed: int) -> None:
    assert machine.installed_memory(int(told * GIB)) == installed * GIB


@pytest.mark.parametrize(
    ("chip", "slug", "label"),
    [
        ("AMD EPYC", "amd-epyc", "epyc-24g"),
        ("AMD Ryzen 9 7950X 16-Core Processor", "amd-ryzen-9-7950x", "ryzen-9-7950x-24g"),
        ("AMD Ryzen 7 7840U w/ Radeon 780M Graphics", "amd-ryzen-7-7840u", "ryzen-7-7840u-24g"),
        ("Intel(R) Core(TM) i7-8650U CPU @ 1.90GHz", "intel-core-i7-8650u", "core-i7-8650u-24g"),
        ("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", "intel-xeon-platinum-8481c", None),
        ("Apple M5 Max", "apple-m5-max", "m5-max-24g"),
        ("ARM 0x41-0xd0c", "arm-0x41-0xd0c", "0x41-0xd0c-24g"),
        (None, "unknown-chip", "unknown-chip-24g"),
        ("龙芯", "unknown-chip", None),
    ],
)
def test_chips_get_short_names_fit_for_a_folder(chip: str | None, slug: str, label: str | None) -> None:
    assert machine.chip_slug(chip) == slug
    assert machine.LABEL.fullmatch(machine.default_label(facts(chip=chip)))
    if label is not None:
        assert machine.default_label(facts(chip=chip)) == label


def test_a_linux_server_tells_chip_and_model(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/cpuinfo": EPYC,
            "sys/class/dmi/id/product_name": "PowerEdge R7625\n",
            "sys/class/dmi/id/sys_vendor": "Dell Inc.\n",
            "sys/class/dmi/id/product_serial": "ABC1234\n",
        },
    )
    found = machine.linux_facts(root, "x86_64", 24 * GIB)
    assert (found.chip, found.model) == ("AMD EPYC", "Dell Inc. PowerEdge R7625")
    assert "ABC1234" not in repr(found)


@pytest.mark.parametrize("name", ["To Be Filled By O.E.M.", "Default string", "System Product Name", ""])
def test_a_maker_that_left_its_field_empty_tells_no_model(tmp_path: Path, name: str) -> None:
    root = tree(tmp_path, {"proc/cpuinfo": EPYC, "sys/class/dmi/id/product_name": name})
    assert machine.linux_facts(root, "x86_64", 24 * GIB).model is None


def test_an_arm_board_tells_its_parts_and_no_serial_number(tmp_path: Path) -> None:
    root = tree(tmp_path, {"proc/cpuinfo": PI, "proc/device-tree/model": "Raspberry Pi 5 Model B Rev 1.0\0"})
    found = machine.linux_facts(root, "aarch64", 8 * GIB)
    assert (found.chip, found.model) == ("ARM 0x41-0xd0b", "Raspberry Pi 5 Model B Rev 1.0")
    assert "deadbeef" not in repr(found)


def test_a_machine_that_tells_nothing_still_has_an_id(tmp_path: Path) -> None:
    found = machine.linux_facts(tmp_path, "riscv64", 4 * GIB)
    assert (found.chip, found.model) == (None, None)
    assert machine.hardware_id(found).startswith("linux-riscv64-unknown-chip-4g-")


def test_a_mac_tells_chip_and_model_through_sysctl() -> None:
    told = {"machdep.cpu.brand_string": "Apple M5 Max\n", "hw.model": "Mac17,7\n"}
    found = machine.mac_facts(lambda argv: told.get(argv[-1]), "arm64", 128 * GIB)
    assert (found.system, found.chip, found.model) == ("macos", "Apple M5 Max", "Mac17,7")
    assert machine.hardware_id(found).startswith("macos-arm64-apple-m5-max-128g-")
    assert machine.default_label(found) == "m5-max-128g"


def test_nvidia_cards_tell_their_model_and_not_their_serial(tmp_path: Path) -> None:
    card = "Model: \t\t NVIDIA GeForce RTX 4090\nIRQ:   \t\t 95\nGPU UUID: \t GPU-12345678-aaaa\n"
    tree(tmp_path, {"0000:01:00.0/information": card, "0000:02:00.0/information": card})
    assert machine._gpus(tmp_path) == ("NVIDIA GeForce RTX 4090",) * 2
    assert machine._gpus(tmp_path / "none") is None


@pytest.mark.parametrize(("text", "limit"), [("max\n", None), ("1073741824\n", GIB), (str(1 << 62), None)])
def test_a_containers_memory_limit_is_told_apart_from_none(tmp_path: Path, text: str, limit: int | None) -> None:
    assert machine._memory_limit(tree(tmp_path, {"memory.max": text})) == limit


# ---- machine.yaml ----


def written(path: Path) -> dict[str, object]:
    found: dict[str, object] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found


def test_machine_yaml_is_written_once_and_a_persons_label_is_kept(tmp_path: Path) -> None:
    here = machine.describe(tmp_path)
    path = machine.record(here, tmp_path)
    assert path == tmp_path / here.id / "machine.yaml"
    assert written(path)["id"] == here.id
    first = path.stat().st_ino
    assert machine.record(here, tmp_path).stat().st_ino == first
    path.write_text(path.read_text(encoding="utf-8").replace(here.label, "attic"), encoding="utf-8")
    named = machine.describe(tmp_path)
    assert (named.id, named.label) == (here.id, "attic")
    for again in (here, named):
        assert written(machine.record(again, tmp_path))["label"] == "attic"


def test_machine_yaml_names_no_host_user_or_serial_number(tmp_path: Path) -> None:
    keys = set(written(machine.record(machine.describe(tmp_path), tmp_path)))
    assert keys == {"id", "label", "chip", "model", "arch", "memory_gib", "cores", "gpus"}


@pytest.mark.parametrize("text", ["label: two words\n", "label: 7\n", "- a list\n", "label: [\n"])
def test_a_label_that_would_break_output_lines_is_refused(tmp_path: Path, text: str) -> None:
    name = machine.describe(tmp_path).id
    tree(tmp_path, {f"{name}/machine.yaml": text})
    with pytest.raises(UsageError, match=r"machine\.yaml"):
        machine.describe(tmp_path)


def test_a_machine_record_holds_what_a_stamp_needs() -> None:
    here = machine.describe()
    assert isinstance(here, Machine)
    assert here.cores >= 1
    assert here.memory_bytes % (GIB // 16) == 0
    assert here.os
    assert here.kernel


# ---- power, heat, pressure ----

LAPTOP = {
    "sys/class/power_supply/AC/type": "Mains\n",
    "sys/class/power_supply/AC/online": "1\n",
    "sys/class/power_supply/BAT0/type": "Battery\n",
    "sys/class/power_supply/BAT0/status": "Charging\n",
}


@pytest.mark.parametrize(
    ("changes", "source"),
    [
        ({}, "mains"),
        ({"sys/class/power_supply/AC/online": "0", "sys/class/power_supply/BAT0/status": "Discharging"}, "battery"),
        ({"sys/class/power_supply/AC/online": "0", "sys/class/power_supply/BAT0/status": "Unknown"}, None),
    ],
)
def test_linux_power_source(tmp_path: Path, changes: dict[str, str], source: str | None) -> None:
    assert machine.linux_power(tree(tmp_path, {**LAPTOP, **changes}))["power_source"] == source


def test_a_mouse_on_battery_is_not_the_machine(tmp_path: Path) -> None:
    mouse = {"type": "Battery", "scope": "Device", "status": "Discharging"}
    root = tree(tmp_path, {f"sys/class/power_supply/hid/{name}": text for name, text in mouse.items()})
    assert machine.linux_power(root)["power_source"] is None


def test_linux_power_mode_is_the_profile_else_the_governor_else_unknown(tmp_path: Path) -> None:
    assert machine.linux_power(tmp_path) == {"power_source": None, "power_mode": None}
    tree(tmp_path, {"sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n"})
    assert machine.linux_power(tmp_path)["power_mode"] == "powersave"
    tree(tmp_path, {"sys/firmware/acpi/platform_profile": "performance\n"})
    assert machine.linux_power(tmp_path)["power_mode"] == "performance"


PMSET_BATT = "Now drawing from '{} Power'\n -InternalBattery-0 (id=12345)\t83%; discharging; 4:21 remaining\n"
PMSET = "System-wide power settings:\nCurrently in use:\n standby              1\n lowpowermode         {}\n"


@pytest.mark.parametrize(
    ("batteries", "settings", "expected"),
    [
        (PMSET_BATT.format("AC"), PMSET.format(0), ("mains", "normal")),
        (PMSET_BATT.format("Battery"), PMSET.format(1), ("battery", "low")),
        (PMSET_BATT.format("AC"), PMSET.format(2).replace("lowpowermode", "powermode"), ("mains", "high")),
        (None, None, (None, None)),
        ("nonsense", "nonsense", (None, None)),
    ],
)
def test_a_macs_power(batteries: str | None, settings: str | None, expected: tuple[str | None, str | None]) -> None:
    found = machine.mac_power(batteries, settings)
    assert (found["power_source"], found["power_mode"]) == expected


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("Note: No thermal warning level has been recorded\nNote: No performance warning level\n", "nominal"),
        ("CPU_Scheduler_Limit \t= 100\nCPU_Available_CPUs \t= 8\nCPU_Speed_Limit \t= 100\n", "nominal"),
        ("CPU_Scheduler_Limit \t= 100\nCPU_Available_CPUs \t= 8\nCPU_Speed_Limit \t= 62\n", "throttled"),
        ("something new", None),
        (None, None),
    ],
)
def test_a_macs_heat(text: str | None, state: str | None) -> None:
    assert machine.mac_thermal(text) == state


def test_pressure_is_the_share_of_the_last_ten_seconds(tmp_path: Path) -> None:
    text = "some avg10=5.59 avg60=2.30 avg300=1.25 total=20217677\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
    assert machine.pressure("cpu", tree(tmp_path, {"proc/pressure/cpu": text})) == 5.59
    assert machine.pressure("io", tmp_path) is None


def test_a_tool_that_is_missing_or_fails_tells_nothing() -> None:
    assert machine.run_tool(("/no/such/tool",)) is None
    assert machine.run_tool(("false",)) is None

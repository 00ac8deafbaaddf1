"""The lab file: what a person writes, what is merged, and the one sentence that names a mistake's file and line."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import get_type_hints

import pytest

from benchmarks.lab import labfile
from benchmarks.lab.errors import UsageError
from benchmarks.lab.labfile import Defaults, Lab
from benchmarks.lab.model import Backend, Budgets, Record

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "lab.yaml"


class Reader:
    """Writes a person's own file and reads it over the shipped one."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "lab.local.yaml"

    def __call__(self, text: str) -> Lab:
        self.path.write_text(textwrap.dedent(text), encoding="utf-8")
        return labfile.load(SHIPPED, self.path)

    def mistake(self, text: str, line: int) -> str:
        """The sentence that a mistake gets; it names the file and this line."""
        with pytest.raises(UsageError) as caught:
            self(text)
        where = f"{self.path}:{line}: "
        sentence = str(caught.value)
        assert sentence.startswith(where), sentence
        assert "\n" not in sentence
        return sentence.removeprefix(where)


@pytest.fixture
def read(tmp_path: Path) -> Reader:
    return Reader(tmp_path)


# ---- the shipped file ----


def test_the_shipped_file_works_as_it_is() -> None:
    lab = labfile.load(SHIPPED)
    embedded, scripted = lab.backends["embedded"], lab.backends["scripted"]
    assert (embedded.engine, embedded.purpose, embedded.context) == ("embedded", "demo", 8192)
    assert embedded.max_tokens is not None
    assert embedded.rewrite == ("max_tokens",)
    assert (scripted.engine, scripted.purpose, scripted.script) == ("scripted", "harness", "solve")
    assert lab.defaults.backends == ("embedded",)
    assert lab.defaults.clients == ("opencode",)


def test_its_commented_examples_are_entries_that_load(tmp_path: Path) -> None:
    text = SHIPPED.read_text(encoding="utf-8")
    examples = re.search(r"^#\n(# backends:\n(?:#.*\n)+)", text, re.M)
    assert examples is not None
    own = tmp_path / "lab.local.yaml"
    own.write_text(re.sub(r"^# ?", "", examples.group(1), flags=re.M), encoding="utf-8")
    lab = labfile.load(SHIPPED, own)
    assert {"my-ollama", "my-lm-studio", "my-llama-server", "the-box-upstairs", "embedded"} <= set(lab.backends)
    assert lab.backends["the-box-upstairs"].api_key_env == "BOX_API_KEY"


# ---- merging ----


def test_a_persons_entries_stand_beside_the_shipped_ones(read: Reader) -> None:
    lab = read(
        """
        backends:
          mine: {engine: openai, base_url: http://127.0.0.1:8080}
        """
    )
    assert set(lab.backends) == {"embedded", "scripted", "mine"}
    assert lab.backends["mine"].purpose == "measure"


def test_single_settings_of_a_shipped_entry_can_be_changed_and_unset(read: Reader) -> None:
    lab = read(
        """
        backends:
          embedded: {context: 4096, weights_id: null}
        defaults: {trials: 5}
        """
    )
    assert (lab.backends["embedded"].context, lab.backends["embedded"].weights_id) == (4096, None)
    assert lab.backends["embedded"].max_tokens == labfile.load(SHIPPED).backends["embedded"].max_tokens
    assert lab.defaults.trials == 5
    assert lab.defaults.clients == ("opencode",)


def test_a_sampler_is_taken_whole(tmp_path: Path, read: Reader) -> None:
    first = tmp_path / "first.yaml"
    first.write_text("backends: {a: {engine: openai, sampler: {temperature: 1, top_p: 0.9}}}", encoding="utf-8")
    read.path.write_text("backends: {a: {sampler: {temperature: 0.5}}}", encoding="utf-8")
    assert labfile.load(SHIPPED, first, read.path).backends["a"].sampler == {"temperature": 0.5}


@pytest.mark.parametrize(
    "text", ["", "# nothing yet\n", "backends:\n#  mine: {}\n", "backends:\ndefaults:\nbudgets:\n"]
)
def test_empty_files_and_headings_change_nothing(read: Reader, text: str) -> None:
    assert read(text).digest == labfile.load(SHIPPED).digest


def test_budgets_of_a_tier_override_single_limits(read: Reader) -> None:
    lab = read(
        """
        budgets:
          default: {wall_seconds: 100, turns: null}
          tiers:
            2: {wall_seconds: 250}
        """
    )
    assert (lab.budgets.wall_seconds, lab.tiers[1].wall_seconds, lab.tiers[2].wall_seconds) == (100, 100, 250)
    assert lab.tiers[2].turns is None
    assert lab.tiers[2].stall_seconds == lab.budgets.stall_seconds
    assert set(lab.tiers) == {1, 2, 3, 4}


def test_a_server_address_is_brought_to_one_form(read: Reader) -> None:
    lab = read(
        """
        backends:
          a: {engine: openai, base_url: "http://127.0.0.1:8080/v1/"}
          b: {engine: openai, base_url: "http://[::1]:8080"}
          c: {engine: openai, base_url: "https://box.lan/models/v1"}
        """
    )
    found = [lab.backends[name].base_url for name in "abc"]
    assert found == ["http://127.0.0.1:8080", "http://[::1]:8080", "https://box.lan/models"]


def test_the_digest_follows_what_is_measured_and_not_comments(read: Reader) -> None:
    plain = read("defaults: {trials: 2}").digest
    assert read("# a note\ndefaults:\n  trials: 2\nevidence_days: 3\n").digest == plain
    assert read("defaults: {trials: 3}").digest != plain
    assert read("defaults: {trials: 2}\nbudgets: {tiers: {4: {turns: 7}}}").digest != plain


def test_settings_may_be_shared_by_an_anchor(read: Reader) -> None:
    lab = read(
        """
        backends:
          a: &same {engine: openai, base_url: http://127.0.0.1:1}
          b: *same
        """
    )
    assert lab.backends["a"].base_url == lab.backends["b"].base_url


# ---- LAB_FILE ----


def test_lab_file_points_elsewhere(tmp_path: Path) -> None:
    own = tmp_path / "elsewhere.yaml"
    own.write_text("evidence_days: 3", encoding="utf-8")
    files = labfile.files(tmp_path, {"LAB_FILE": str(own)})
    assert files == (tmp_path / "lab.yaml", own)
    with pytest.raises(UsageError, match=r"LAB_FILE names .*none\.yaml', which is no file"):
        labfile.files(tmp_path, {"LAB_FILE": str(tmp_path / "none.yaml")})


@pytest.mark.parametrize("named", ["~no-such-user-here/lab.yaml", "/tmp/\udcff.yaml", "/tmp/" + "n" * 300, "/tmp"])
def test_a_lab_file_that_cannot_be_one_names_the_variable(tmp_path: Path, named: str) -> None:
    with pytest.raises(UsageError, match=r"the variable LAB_FILE names .*, which is no file; correct or unset it"):
        labfile.files(tmp_path, {"LAB_FILE": named})


def test_a_local_file_is_read_when_it_is_there(tmp_path: Path) -> None:
    assert labfile.files(tmp_path, {}) == (tmp_path / "lab.yaml",)
    (tmp_path / "lab.local.yaml").write_text("", encoding="utf-8")
    assert labfile.files(tmp_path, {}) == (tmp_path / "lab.yaml", tmp_path / "lab.local.yaml")


# ---- mistakes ----

ENTRY = "backends:\n  mine:\n    engine: openai\n    {line}\n"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("contxt: 8192", '`contxt` is no setting of backend mine (did you mean "context"?)'),
        ("name: other", "`name` is no setting of backend mine"),
        ("context: 8k", "`context` of backend mine must be a whole number, not text"),
        ("context: 8192.0", "`context` of backend mine must be a whole number, not a number"),
        ("context: 0", "`context` of backend mine must be greater than 0"),
        ("model: 4.1", "`model` of backend mine must be text, not a number"),
        ("model: 2026-01-01", "`model` of backend mine must be text, not a date"),
        (
            "sampler: {temperatur: 0}",
            '`sampler` of backend mine names no sampling parameter (did you mean "temperature"?)',
        ),
        ("rewrite: sampler", "`rewrite` of backend mine must be a list of text, like [a, b], not text"),
        ("rewrite: [samplr]", 'names an unknown edit (did you mean "sampler"?)'),
        ("rewrite: [max_tokens]", "`rewrite: [max_tokens]` of backend mine needs the setting `max_tokens` to pin"),
        ("rewrite: [sampler]", "needs the setting `sampler` to pin"),
        ("purpose: demoo", 'must be one of measure, demo, harness (did you mean "demo"?)'),
        ("sampler: {temperature: hot}", "`sampler` of backend mine must be a group of settings"),
        ("restart: [never]", "must be one of never, arm, trial, not a list"),
        ("base_url: 127.0.0.1:8080", "must begin with http:// or https:// and name a host"),
        ("base_url: http://127.0.0.1:notaport", "is no URL"),
    ],
)
def test_a_mistake_in_an_entry_names_its_line_and_the_fix(read: Reader, line: str, words: str) -> None:
    assert words in read.mistake(ENTRY.format(line=line), 4)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("backend: {}", 1, '`backend` is no setting of the lab file (did you mean "backends"?)'),
        ("mine:\n  engine: openai", 1, "a backend stands below `backends:`, further to the right"),
        ("backends:\nmine:\n  engine: openai", 2, "a backend stands below `backends:`, further to the right"),
        ("backends:\n  mine:\n  engine: openai", 2, "backend mine is empty; its settings stand below it"),
        ("\n- a list", 2, "the lab file must be settings with their values, not a list"),
        ("backends: [a]", 1, "backends must be settings with their values, not a list"),
        ("backends:\n  a: {model: x}", 2, "backend a needs `engine:`"),
        ("backends:\n  a: {engine: null}", 2, "`engine` of backend a must be text, not nothing"),
        ("backends:\n  'my box': {engine: openai}", 2, "the name of a backend is made of letters"),
        ("defaults:\n  trials: many", 2, "`trials` of defaults must be a whole number, not text"),
        ("defaults:\n  trials: 0", 2, "must be greater than 0"),
        ("defaults:\n  order: blockd", 2, 'one of interleaved, blocked (did you mean "blocked"?)'),
        (
            "defaults:\n  backends: [embeded]",
            2,
            'names an entry that is not there (did you mean "embedded"?); there are embedded',
        ),
        ("backends:\n  a: {engine: x, temperature: 0.2}", 2, "it belongs into its `sampler:`, like `sampler: {temper"),
        ("budgets:\n  wall_seconds: 3", 2, "`wall_seconds` is no setting of budgets; known: default, tiers"),
        ("budgets:\n  tiers:\n    5: {turns: 3}", 3, "`5` is no setting of budgets.tiers"),
        ("budgets:\n  default:\n    wall_seconds: .inf", 3, "must be finite"),
        ("budgets:\n  default:\n    turns: 1" + "0" * 400, 3, "must be finite"),
        ("evidence_days: 40000", 1, "must be a whole number of days, 0 to 36500"),
        ("budgets:\n  tiers:\n    2:\n      wall_secnds: 3", 4, '(did you mean "wall_seconds"?)'),
        ("evidence_days: -1", 1, "`evidence_days` must be a whole number of days"),
        ("evidence_days: 30\nevidence_days: 40", 2, "`evidence_days` stands here twice, first on line 1"),
        ("backends:\n  a: {engine: x}\n  a: {engine: y}", 3, "`a` stands here twice, first on line 2"),
        ("backends: {a: {engine: [}}", 1, "this is no YAML"),
        ("defaults:\n\ttrials: 3", 2, "this is no YAML"),
        ("? [a]\n: b", 1, "the name of a setting must be plain text"),
        ("a: 1\n---\nb: 2", 2, "this is no YAML"),
        ("evidence_days: !!int x", 1, "not understood"),
        ("a: &a [*a]", 1, "nested too deeply"),
    ],
)
def test_a_mistake_elsewhere_names_its_line_and_the_fix(read: Reader, text: str, line: int, words: str) -> None:
    assert words in read.mistake(text, line)


SECRET = "hunter2-s3cret"


@pytest.mark.parametrize(
    "line",
    [
        f"base_url: http://user:{SECRET}@127.0.0.1:8080",
        f"base_url: http://{SECRET}@127.0.0.1:8080",
        f"base_url: http://127.0.0.1:8080/?api_key={SECRET}",
        f"base_url: ftp://{SECRET}",
        f"base_url: http://127.0.0.1:{SECRET}",
        f"api_key: {SECRET}",
        f"api_key_env: {SECRET}",
        f"api_key_env: {SECRET.upper()}",
        f"api_key_env: hf_{SECRET.replace('-', '')}",
        f"token: {SECRET}",
        f"options: {{headers: {{Authorization: Bearer {SECRET}}}}}",
        f"context: {SECRET}",
        f"purpose: {SECRET}",
        f"rewrite: [{SECRET}]",
    ],
)
def test_a_key_is_refused_without_being_repeated(read: Reader, line: str) -> None:
    sentence = read.mistake(ENTRY.format(line=line), 4)
    assert SECRET.lower() not in sentence.lower()
    assert SECRET.replace("-", "") not in sentence


def test_a_key_in_the_wrong_place_is_told_where_keys_belong(read: Reader) -> None:
    assert "`api_key_env`" in read.mistake(ENTRY.format(line="api_key: x"), 4)
    assert "the NAME of an environment variable" in read.mistake(ENTRY.format(line="api_key_env: sk-abc"), 4)


def test_settings_that_only_sound_like_keys_are_allowed(read: Reader) -> None:
    lab = read(ENTRY.format(line="options: {max_tokens_total: 5, cache_key_bits: 3, keyboard: 1}"))
    assert len(lab.backends["mine"].options) == 3


def test_an_unknown_backend_is_one_sentence_with_a_suggestion(tmp_path: Path) -> None:
    lab = labfile.load(SHIPPED)
    assert labfile.find_backend(lab, "embedded").name == "embedded"
    with pytest.raises(UsageError, match=r'--backend embeded: .*did you mean "embedded".* it has embedded, scripted'):
        labfile.find_backend(lab, "embeded")
    with pytest.raises(
        UsageError, match=rf"it has embedded, scripted \(there is no {SHIPPED.with_name('lab.local.yaml')}\)"
    ):
        labfile.find_backend(lab, "mine")
    own = tmp_path / "own.yaml"
    own.touch()
    with pytest.raises(UsageError, match=rf"\(read from .*lab.yaml, {own}\)"):
        labfile.find_backend(labfile.load(SHIPPED, own), "mine")


@pytest.mark.parametrize(
    ("content", "words"), [(b"\xff\xfe\x00", "is not UTF-8 text"), (b"a: \x07", "characters that YAML does not allow")]
)
def test_a_file_that_is_no_text_is_one_sentence(read: Reader, content: bytes, words: str) -> None:
    read.path.write_bytes(content)
    with pytest.raises(UsageError, match=words):
        labfile.load(SHIPPED, read.path)


def test_a_missing_or_closed_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.yaml cannot be read: No such file"):
        labfile.load(tmp_path / "none.yaml")
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        labfile.load(tmp_path)


# ---- docs/lab-file.md ----


def documented() -> dict[str, dict[str, str]]:
    """Heading -> setting -> its type as documented."""
    found: dict[str, dict[str, str]] = {}
    heading = ""
    for line in (ROOT / "docs" / "lab-file.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            heading = line.strip("# `")
        if line.startswith("| `"):
            name, kind = (cell.strip(" `") for cell in line.strip("|").split("|")[:2])
            found.setdefault(heading, {})[name] = kind
    return found


def settings(record: type[Record], *fixed: str) -> dict[str, str]:
    hints = get_type_hints(record)
    return {name: labfile.wanted(hints[name]) for name in record.__struct_fields__ if name not in fixed}


def test_every_setting_is_documented_with_its_type() -> None:
    docs = documented()
    assert docs["backends"] == settings(Backend, "name")
    assert docs["defaults"] == settings(Defaults)
    assert docs["budgets"] == settings(Budgets)
    assert set(docs["Sections"]) == set(labfile.SECTIONS)


@pytest.mark.parametrize("value", [".nan", ".inf", "-.inf", "1" + "0" * 400, "[1, {deep: .nan}]"])
@pytest.mark.parametrize("group", ["sampler: {temperature: %s}", "options: {anything: %s}"])
def test_a_number_that_is_not_finite_is_refused_wherever_it_stands(read: Reader, group: str, value: str) -> None:
    text = "backends:\n  mine:\n    engine: openai\n    " + group % value
    assert "a number here must be finite and below 2^53" in read.mistake(text, 4)


def test_a_lab_file_nested_beyond_reason_is_one_sentence(read: Reader) -> None:
    with pytest.raises(UsageError, match="is nested too deeply"):
        read("backends: " + "[" * 3000)

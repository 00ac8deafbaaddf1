"""run.py as a person uses it, with the scripted engine and the stub agent: nothing to install but the task's target."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from benchmarks.agent import planning, run
from benchmarks.lab import labfile, ledger, machine, paths
from benchmarks.lab.batch import Outcome
from benchmarks.lab.model import Backend
from benchmarks.lab.report import pages
from benchmarks.lab.session import SAME_REQUEST_SECONDS
from tests.agent.conftest import QUICK_TASK, LabFile

if TYPE_CHECKING:
    from tests.agent.conftest import Desk

SCRIPTED = ("--backend", "scripted")


def wait_for(seen: Callable[[], bool], seconds: float = 200.0) -> None:
    deadline = time.monotonic() + seconds
    while not seen():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.05)


def test_a_batch_writes_plan_controls_stamp_trial_and_end(done: tuple[Desk, str]) -> None:
    desk, output = done
    (row,) = desk.trials()
    assert (row.verdict, row.cause, row.flags) == ("passed", None, ())
    assert [one.body["control"] for one in desk.rows("control")] == ["gold", "excised"]
    assert all(one.body["as_expected"] for one in desk.rows("control"))
    (start,), (end,), (stamp,) = desk.rows("batch_start"), desk.rows("batch_end"), desk.rows("stamp")
    (trial,) = desk.rows("trial")
    assert trial.stamp == stamp.stamp
    assert trial.batch == start.batch == end.batch
    assert end.body["done"] == 1
    assert stamp.body["values"]["script"] == "solve"
    assert "1/1" in output


def test_every_line_while_measuring_says_what_produced_it(done: tuple[Desk, str]) -> None:
    _, output = done
    measuring = output.split("batch ")[0].splitlines()
    assert len(measuring) > 3
    assert all(line.startswith("[") and "@" in line.split("]")[0] for line in measuring if line.strip())


def test_the_meter_agrees_with_the_engine_and_the_shares_add_up(done: tuple[Desk, str]) -> None:
    desk, _ = done
    (row,) = desk.trials()
    assert row.counters_agree is True
    assert row.shares is not None
    parts = row.shares.startup + row.shares.prefill + row.shares.decode + row.shares.model_unsplit
    assert parts + row.shares.client_and_tool + row.shares.tail == pytest.approx(row.shares.wall)
    assert row.strays == 0


def test_conformance_rows_are_written(done: tuple[Desk, str]) -> None:
    desk, _ = done
    smoke = {row.body["check"]: row.body["outcome"] for row in desk.rows("smoke")}
    assert set(smoke.values()) == {"ok"}
    assert {"starts_where_told", "prompt_intact", "tool_round_trip", "leaves_nothing"} <= set(smoke)


def test_a_pair_that_cannot_work_gets_a_row_with_the_reason_and_no_trial(desk: Desk, lab_file: LabFile) -> None:
    lab_file("backends:\n  tight: {engine: scripted, purpose: harness, context: 100, max_tokens: 200}\n")
    code, output = desk.trial("--backend", "tight")
    assert code == 3, output
    (row,) = desk.rows("smoke")
    assert (row.body["outcome"], row.body["backend"], row.body["client"]) == ("unsupported", "tight", "stub")
    assert "a context of 100" in row.body["detail"]
    assert not desk.rows("trial")


def test_a_dry_run_says_the_plan_and_writes_nothing(desk: Desk) -> None:
    code, output = desk.trial(*SCRIPTED, "--dry-run")
    assert code == 0, output
    assert "1 task x 1 cell (scripted/stub) x 1 trial = 1 trial," in output
    assert output.index("estimate") < output.index("gold passes, excised fails")
    assert "every control came out as known" in output
    assert not desk.results.exists()
    assert not list((desk.folder / "state").glob("evidence/**/*"))


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--backend", "scriptd"), "--backend scriptd: the lab file has no such entry (did you mean"),
        (("--backend", "scripted:solv"), "script 'solv' is unknown"),
        (("--client", "codx"), "'codx' is not known"),
        (("--client", "codex,claude"), "'codex,claude' is not known (one name at a time: repeat the flag)"),
        (("--task", "toolz-grupby"), 'suite core-1 has no such task (did you mean "toolz-groupby"?); it has boltons-'),
        (("--tag", "strter"), "--tag strter: no task has it"),
        (("--trials", "0"), "give a whole number from 1"),
        (("--trials", "²"), "give a whole number from 1"),
        (("--trials", "999999999"), "one batch has at most 100000"),
        (("--require-harness-head", ""), "--require-harness-head '' is no commit"),
        (("--stall-seconds", "soon"), "is no number of seconds above 0"),
        (("--backend", ""), "--backend: it is empty; give a value, or leave the flag out"),
        (("--task", ""), "--task: it is empty"),
        (("--tag", " "), "--tag: it is empty"),
        (("--client", ""), "--client: it is empty"),
        (("--results", ""), "--results: it is empty"),
        (("--results", "/tmp"), "--results: '/tmp' is a folder; name a file in it"),
        (("--results", "/dev/null"), "--results: '/dev/null' is no plain file"),
        (("--results", "/dev/null/x.jsonl"), "--results: '/dev/null/x.jsonl' cannot be made, since /dev/null is no"),
        (("--results", "/tmp/\udcff.jsonl"), "--results: '/tmp/\\udcff.jsonl' is no UTF-8 text"),
    ],
)
def test_mistakes_are_one_sentence_with_code_2(desk: Desk, flags: tuple[str, ...], sentence: str) -> None:
    code, output = desk.run("--results", str(desk.results), *flags)
    assert code == 2
    assert sentence in output
    assert output.count("\n") == 1
    assert "Traceback" not in output
    assert not desk.results.exists()


def test_a_server_that_is_not_there_is_said_before_anything_is_fetched_or_written(
    desk: Desk, lab_file: LabFile
) -> None:
    lab_file("backends:\n  x: {engine: openai, base_url: 'http://127.0.0.1:1'}\n")
    code, output = desk.run("--results", str(desk.results), "--backend", "x", "--client", "qwen")
    assert code == 3
    assert "nothing listens at http://127.0.0.1:1" in output
    assert "install" not in output
    assert not desk.results.exists()


def test_a_client_misspelled_in_the_lab_file_is_looked_for_there(desk: Desk, lab_file: LabFile) -> None:
    lab = lab_file("defaults:\n  clients: [codx]\n")
    code, output = desk.run("--results", str(desk.results))
    assert code == 2
    assert f"{lab}: 'codx' is not known (did you mean \"codex\"?)" in output


def test_another_head_than_the_required_one_is_refused(desk: Desk) -> None:
    code, output = desk.trial(*SCRIPTED, "--require-harness-head", "0123456789")
    assert code == 3
    assert "--require-harness-head 0123456789: this checkout is at" in output
    assert not desk.results.exists()


def test_a_lab_file_with_a_typo_names_file_line_and_the_right_word(desk: Desk, lab_file: LabFile) -> None:
    lab = lab_file("backends:\n  x:\n    engine: openai\n    base_ulr: http://127.0.0.1:1\n")
    code, output = desk.trial("--backend", "x")
    assert code == 2
    assert f"{lab}:4: `base_ulr` is no setting of backend x" in output
    assert "base_url" in output


def test_a_second_run_refuses_and_says_who_holds_the_lock(desk: Desk) -> None:
    first = desk.start("--results", str(desk.results), "--backend", "scripted:stall", "--client", "stub",
                       "--task", "toolz-groupby", "--trials", "1", "--skip-smoke")  # fmt: skip
    wait_for(lambda: (desk.folder / "lock").exists() and (desk.folder / "lock").read_text().strip() != "")
    code, output = desk.trial(*SCRIPTED)
    assert code == 3
    assert str(first.pid) in output
    assert "run.py" in output
    first.send_signal(signal.SIGKILL)
    first.communicate()


def stalling(desk: Desk, *flags: str) -> subprocess.Popen[str]:
    """A run whose only trial hangs, at the moment when it hangs."""
    run = desk.start("--results", str(desk.results), "--backend", "scripted:stall", "--client", "stub", "--task",
                     "toolz-groupby", "--trials", "1", "--skip-smoke", "--no-lock", *flags)  # fmt: skip
    wait_for(lambda: started(desk))
    return run


def test_a_run_with_the_lock_leaves_the_work_folders_of_one_without_it(desk: Desk) -> None:
    first = stalling(desk)
    (live,) = (desk.folder / "state" / "work").glob("trial-*")
    code, output = desk.trial(*SCRIPTED)
    assert code == 0, output
    assert "another program is at work: 1 work folder left alone" in output
    assert (live / "workspace").is_dir()
    interrupt_twice(first)
    first.communicate(timeout=120)


def test_a_batch_under_way_is_not_continued_by_a_second_run(desk: Desk) -> None:
    first = stalling(desk)
    code, output = desk.trial("--backend", "scripted:stall", "--no-lock")
    assert code == 3
    assert "another program is running batch" in output
    assert "--fresh" in output
    interrupt_twice(first)
    first.communicate(timeout=120)
    assert len(desk.rows("batch_start")) == len(desk.rows("trial")) == 1


def test_another_machines_unfinished_batch_is_not_continued(desk: Desk) -> None:
    code, output = desk.trial(*SCRIPTED)
    assert code == 0, output
    lines = desk.results.read_bytes().splitlines(keepends=True)
    mine = desk.rows("batch_start")[0].machine
    foreign = [line.replace(mine.encode(), b"some-other-machine") for line in lines if b'"batch_end"' not in line]
    desk.results.write_bytes(b"".join(foreign))
    code, output = desk.trial(*SCRIPTED)
    assert code == 0, output
    assert "continuing batch" not in output
    assert [row.machine for row in desk.rows("trial")] == ["some-other-machine", mine]


def interrupt_twice(process: subprocess.Popen[str]) -> None:
    """Ask twice, as far apart as a person's two key presses: closer ones count as one."""
    process.send_signal(signal.SIGINT)
    time.sleep(SAME_REQUEST_SECONDS + 0.2)
    process.send_signal(signal.SIGTERM)


def started(desk: Desk) -> bool:
    return any((desk.folder / "state" / "evidence").glob("*/*/*/exchanges"))


def test_kill_9_in_a_trial_loses_no_row_leaves_no_process_and_the_next_run_goes_on(desk: Desk) -> None:
    flags: tuple[str, ...] = (
        "--results",
        str(desk.results),
        "--client",
        "stub",
        "--task",
        "toolz-groupby",
        "--trials",
        "1",
    )
    flags += ("--skip-smoke", "--backend", "scripted", "--backend", "scripted:stall", "--stall-seconds", "600")
    run = desk.start(*flags)
    wait_for(lambda: len(desk.rows("trial")) == 1 if desk.results.exists() else False)
    wait_for(lambda: len(list((desk.folder / "state" / "evidence").glob("*/*/*stall*/exchanges"))) == 1)
    run.send_signal(signal.SIGKILL)
    run.communicate()
    wait_for(lambda: not desk.processes(), 30)
    assert [row.verdict for row in desk.trials()] == ["passed"]
    assert not desk.rows("batch_end")
    (left,) = (desk.folder / "state" / "work").glob("trial-*")
    again = desk.start(*flags)
    wait_for(lambda: not left.exists())
    wait_for(lambda: len(list((desk.folder / "state" / "work").glob("trial-*"))) == 1)
    interrupt_twice(again)
    output, _ = again.communicate(timeout=120)
    assert ": 1 trial counted already, 0 void" in output
    assert len(desk.rows("batch_start")) == 1


def assert_ended_at_once(desk: Desk, run: subprocess.Popen[str]) -> None:
    """The run ends as interrupted, its trial is void, and nothing of it goes on."""
    output, _ = run.communicate(timeout=60)
    assert run.returncode == 130, output
    (row,) = desk.trials()
    assert (row.verdict, row.reason) == ("void", "interrupted")
    assert not desk.rows("batch_end")
    assert not desk.processes()


def test_ctrl_c_twice_ends_the_trial_at_once_and_its_row_is_void(desk: Desk) -> None:
    run = desk.start("--results", str(desk.results), "--backend", "scripted:stall", "--client", "stub",
                     "--task", "toolz-groupby", "--trials", "1", "--skip-smoke", "--stall-seconds", "600")  # fmt: skip
    wait_for(lambda: started(desk))
    interrupt_twice(run)
    assert_ended_at_once(desk, run)


def test_ctrl_c_once_finishes_the_trial_and_stops(desk: Desk) -> None:
    run = desk.start("--results", str(desk.results), "--backend", "scripted:slow_prefill", "--client", "stub",
                     "--task", "toolz-groupby", "--trials", "2", "--skip-smoke")  # fmt: skip
    wait_for(lambda: started(desk))
    run.send_signal(signal.SIGINT)
    output, _ = run.communicate(timeout=120)
    assert run.returncode == 130, output
    assert output.count("stopping when this trial has ended; Ctrl-C again ends it now") == 1
    assert [row.verdict for row in desk.trials()] == ["passed"]
    code, output = desk.run("--results", str(desk.results), "--backend", "scripted:slow_prefill", "--client", "stub",
                            "--task", "toolz-groupby", "--trials", "2", "--skip-smoke")  # fmt: skip
    assert code == 0, output
    assert [row.trial for row in desk.trials()] == [1, 2]
    assert len(desk.rows("batch_start")) == len(desk.rows("batch_end")) == 1


def test_a_terminal_that_is_closed_ends_the_trial_at_once_and_its_row_is_void(desk: Desk) -> None:
    run = stalling(desk, "--stall-seconds", "600")
    run.send_signal(signal.SIGHUP)
    assert_ended_at_once(desk, run)
    assert list((desk.folder / "state" / "work").iterdir()) == []


def test_a_reader_that_goes_away_during_a_trial_lets_it_end_with_its_row(desk: Desk) -> None:
    run = desk.start("--results", str(desk.results), "--backend", "scripted:slow_prefill", "--client", "stub",
                     "--task", QUICK_TASK, "--trials", "2", "--skip-smoke", stderr=subprocess.PIPE)  # fmt: skip
    wait_for(lambda: started(desk))
    assert run.stdout is not None
    run.stdout.close()
    assert run.stderr is not None
    error = run.stderr.read()
    assert run.wait(60) == 141, error
    assert error == "run.py: nobody reads the output any more; stopping when this trial has ended\n"
    assert [row.verdict for row in desk.trials()] == ["passed"]
    assert not desk.rows("batch_end")
    assert not desk.processes()


def test_a_reader_that_goes_away_before_the_first_trial_ends_the_program(desk: Desk) -> None:
    run = desk.start("--results", str(desk.results), *SCRIPTED, "--client", "stub", "--task", QUICK_TASK,
                     "--skip-smoke", stderr=subprocess.PIPE)  # fmt: skip
    assert run.stdout is not None
    run.stdout.close()
    assert run.stderr is not None
    error = run.stderr.read()
    assert (run.wait(60), error) == (141, "run.py: nobody reads the output any more; stopping\n")
    assert not desk.rows("trial")
    assert list((desk.folder / "state" / "work").iterdir()) == []


def test_private_words_stay_out_of_the_ledger(done: tuple[Desk, str]) -> None:
    desk, _ = done
    assert "final_message" not in json.loads(desk.results.read_text().splitlines()[-2])["client_report"]


def test_no_work_folder_is_left(done: tuple[Desk, str]) -> None:
    desk, _ = done
    assert list(Path(desk.folder / "state" / "work").iterdir()) == []


@pytest.mark.parametrize(
    ("backend", "trials", "said"),
    [
        (
            labfile.load(paths.checkout_root() / "lab.yaml").backends["embedded"],
            3,
            "the demo model is too small for these tasks",
        ),
        (labfile.load(paths.checkout_root() / "lab.yaml").backends["embedded"], 0, None),
        (Backend(name="mine", engine="openai", purpose="demo"), 3, "mine is a demo: its failures say nothing"),
        (Backend(name="mine", engine="openai"), 3, None),
    ],
)
def test_what_is_said_of_a_demo_is_known_of_it(backend: Backend, trials: int, said: str | None) -> None:
    bench = SimpleNamespace(book=SimpleNamespace(path="x"), backends={backend.name: backend})
    outcome = Outcome(batch="b", done=trials, void=0, given_up=0, interrupted=False, left_out={})
    words = list(planning.closing_words(bench, outcome))[1:]  # type: ignore[arg-type]
    assert len(words) == (said is not None)
    assert all(said is not None and line.startswith(said) for line in words)


def test_the_default_ledger_by_a_relative_path_makes_the_pages_anew_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = machine.describe()
    own = tmp_path / "hardware" / here.id / "trials.jsonl"
    own.parent.mkdir(parents=True)
    own.touch()
    monkeypatch.setattr("benchmarks.lab.paths.checkout_root", lambda: tmp_path)
    monkeypatch.setattr(planning, "closing_words", lambda bench, outcome: ())
    monkeypatch.setattr(planning, "prefix", lambda bench: "[x]")
    monkeypatch.setattr(machine, "record", lambda found: None)
    monkeypatch.chdir(tmp_path)
    book = ledger.Ledger(Path("hardware") / here.id / "trials.jsonl")
    outcome = Outcome(batch="b", done=0, void=0, given_up=0, interrupted=False, left_out={})
    assert run._report(SimpleNamespace(book=book, machine=here), outcome) == 0  # type: ignore[arg-type]
    assert f"wrote {own.with_name(pages.RESULTS)}" in capsys.readouterr().out

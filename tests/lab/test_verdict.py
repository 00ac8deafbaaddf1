"""Every row of the verdict table, its order, and the findings that feed it."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from benchmarks.lab.findings import Seen, evidence
from benchmarks.lab.model import (
    ClientReport,
    EgressAttempt,
    ExitStatus,
    Judgement,
    Patch,
    Ruling,
    ToolCall,
    VoidReason,
)
from benchmarks.lab.verdict import Evidence, rule
from tests.lab.conftest import exchange

PASS = ("passed", None, None)


def judged(green: bool, **changes: Any) -> Judgement:
    fields: dict[str, Any] = {
        "green": green, "passed": 5, "failed": 0 if green else 1, "skipped": 0, "collected": 5, "missing": (),
        "seconds": 1.0, "ended_by": "suite", "forged": False, "outcomes": {}, "log": None,
    }  # fmt: skip
    return Judgement(**{**fields, **changes})


def patch(changed: bool, **changes: Any) -> Patch:
    fields: dict[str, Any] = {
        "files": {"a.py": b"x"} if changed else {}, "diff": b"", "lines_added": 1, "lines_removed": 1,
        "touched_tests": (), "touched_other": (), "unreadable": (),
    }  # fmt: skip
    return Patch(**{**fields, **changes})


def ruling(*, changed: bool = True, green: bool | None = None, **changes: Any) -> Ruling:
    """The ruling of a trial whose client left by itself with code 0 unless the changes say otherwise."""
    judgement = judged(bool(green)) if changed else None
    fields: dict[str, Any] = {
        "exchanges": (exchange(0), exchange(1)), "report": ClientReport(terminal="success"),
        "exit": ExitStatus(code=0, signal=None, ended_by="client"), "patch": patch(changed), "judgement": judgement,
        "egress": (), "voids": {}, "model": "m", "names": ("m",), "workspace": "/home/agent/work/x",
        "ended_detail": None, "counters_agree": None, "stray_answers": (), "judge_limit_seconds": 60.0,
        "gold_seconds": 2.0,
    }  # fmt: skip
    return rule(evidence(Seen(**{**fields, **changes})))


def summary(found: Ruling) -> tuple[str, str | None, str | None]:
    return found.verdict, found.cause or found.reason, found.who


def ended(by: str, code: int | None = None, signal: int | None = None) -> ExitStatus:
    return ExitStatus(code=code, signal=signal, ended_by=by)  # type: ignore[arg-type]


def test_green_is_passed_and_untouched_is_no_edit_and_changed_is_wrong() -> None:
    assert summary(ruling(green=True)) == PASS
    assert summary(ruling(changed=False)) == ("failed", "no_edit", "model")
    assert summary(ruling(green=False)) == ("failed", "wrong", "model")


@pytest.mark.parametrize("reason", get_args(VoidReason))
def test_every_void_reason_wins_over_a_green_suite(reason: VoidReason) -> None:
    found = ruling(green=True, voids={reason: "seen"})
    assert (found.verdict, found.reason, found.detail) == ("void", reason, "seen")


def test_voids_come_in_the_order_of_the_table() -> None:
    assert ruling(voids={"interrupted": "i", "disk_full": "d", "machine_slept": "s"}).reason == "machine_slept"


@pytest.mark.parametrize(
    ("by", "cause"),
    [
        ("wall", "budget_wall"), ("turns", "budget_turns"), ("tokens", "budget_tokens"), ("loop", "loop"),
        ("disk", "budget_disk"), ("memory", "budget_memory"), ("processes", "budget_processes"),
    ],
)  # fmt: skip
def test_a_budget_ends_the_trial_and_a_green_rest_is_only_flagged(by: str, cause: str) -> None:
    assert summary(ruling(green=False, exit=ended(by))) == ("failed", cause, "model")
    found = ruling(green=True, exit=ended(by), ended_detail="513 of 512")
    assert (summary(found), found.flags) == (("failed", cause, "model"), ("would_pass",))
    assert found.detail == "513 of 512"


def test_case_02_no_request_was_ever_made() -> None:
    found = ruling(changed=False, exchanges=(), exit=ended("stall"))
    assert summary(found) == ("failed", "stalled", "client")
    assert found.detail == "no request was ever made"


def test_case_04_B03_endless_retries_stall_and_the_engine_is_named() -> None:
    failing = [exchange(n, status=500, error="boom", duplicate_of=0 if n else None) for n in range(9)]
    found = ruling(changed=False, exchanges=tuple(failing), exit=ended("stall"))
    assert summary(found) == ("failed", "stalled", "engine")
    assert found.detail == "9 requests (8 identical), the last one: status 500: boom"


def test_a_request_without_an_answer_stalls_by_the_engine() -> None:
    silent = exchange(1, status=None, t_first_byte=None, t_first_token=None, ended="client_closed", t_end=301.0)
    found = ruling(changed=False, exchanges=(exchange(0), silent), exit=ended("stall"))
    assert summary(found) == ("failed", "stalled", "engine")
    assert found.detail is not None
    assert "300 s without a byte" in found.detail


def test_a_client_that_does_nothing_after_a_whole_reply_stalls_by_itself() -> None:
    assert summary(ruling(changed=False, exit=ended("stall"))) == ("failed", "stalled", "client")


def test_case_01_B01_another_folder_is_void_and_names_both() -> None:
    found = ruling(changed=False, report=ClientReport(workspace="/other"))
    assert (found.verdict, found.reason) == ("void", "wrong_workspace")
    assert found.detail == "the client worked in /other, not in /home/agent/work/x"
    stray = ruling(changed=False, stray_answers=("/home/agent/a.py",))
    assert (stray.verdict, stray.reason) == ("void", "wrong_workspace")


def test_a_copy_elsewhere_by_a_client_that_was_in_its_workspace_is_the_models_doing() -> None:
    there = ClientReport(terminal="success", workspace="/home/agent/work/x")
    found = ruling(changed=False, report=there, stray_answers=("backup/a.py",))
    assert summary(found) == ("failed", "no_edit", "model")


def test_B08_an_altered_prompt_is_void_but_a_compacted_later_turn_is_not() -> None:
    assert ruling(green=True, exchanges=(exchange(0, prompt_found=False),)).reason == "prompt_altered"
    assert ruling(green=True, exchanges=(exchange(0), exchange(1, prompt_found=False))).verdict == "passed"
    assert (
        ruling(green=True, exchanges=(exchange(0, auxiliary=True, prompt_found=False), exchange(1))).verdict == "passed"
    )


def test_case_20_B04_B14_another_model_asked_or_answering_is_void() -> None:
    answered = ruling(green=True, exchanges=(exchange(0, model_answered="gpt-x"),))
    assert (answered.reason, answered.detail) == (
        "model_mismatch", 'model "gpt-x" answered request 0; the backend names m'
    )  # fmt: skip
    asked = ruling(green=True, exchanges=(exchange(0, model_asked="claude-haiku-4-5"),))
    assert asked.reason == "model_mismatch"
    assert asked.detail is not None
    assert "claude-haiku-4-5" in asked.detail
    assert ruling(green=True, exchanges=(exchange(0, model_answered="m:q4"),), names=("m", "m:q4")).verdict == "passed"


def test_B13_B20_case_23_a_request_given_up_while_read_and_sent_again_is_void() -> None:
    given_up = exchange(0, status=None, t_first_byte=None, t_first_token=None, ended="client_closed", t_end=300.0)
    found = ruling(green=True, exchanges=(given_up, exchange(1, duplicate_of=0)))
    assert (found.verdict, found.reason) == ("void", "client_impatient")
    assert ruling(green=True, exchanges=(exchange(0), exchange(1, duplicate_of=0))).verdict == "passed"


@pytest.mark.parametrize("changed", [False, True])
def test_a_fatal_engine_error_at_the_end_names_the_engine(changed: bool) -> None:
    last = exchange(1, status=500, error="out of memory")
    assert summary(ruling(changed=changed, exchanges=(exchange(0), last))) == ("failed", "engine_error", "engine")
    closed = exchange(1, ended="engine_closed", partial=True)
    assert summary(ruling(changed=changed, exchanges=(closed,))) == ("failed", "engine_error", "engine")


def test_an_engine_error_that_was_recovered_from_is_not_the_cause() -> None:
    recovered = (exchange(0, status=500, error="busy"), exchange(1))
    assert summary(ruling(changed=False, exchanges=recovered)) == ("failed", "no_edit", "model")


def test_case_24_a_refused_context_belongs_to_the_backend() -> None:
    last = exchange(1, status=400, error="exceeds the available context size", error_kind="context")
    assert summary(ruling(changed=False, exchanges=(last,))) == ("failed", "context_overflow", "backend")


@pytest.mark.parametrize("kind", ["context", "other"])
def test_a_failing_side_request_moves_no_blame_from_a_client_that_ended_well(kind: str) -> None:
    provoked = exchange(1, status=400, error="maximum context length exceeded", error_kind=kind, auxiliary=True)
    found = ruling(changed=False, exchanges=(exchange(0), provoked))
    assert summary(found) == ("failed", "no_edit", "model")
    gave_up = ClientReport(terminal="error", error="compaction failed")
    blamed = ruling(changed=False, exchanges=(exchange(0), provoked), report=gave_up)
    assert blamed.who in ("backend", "engine")


def test_case_03_B60_a_fatal_event_with_code_0_is_the_clients_error_not_a_try() -> None:
    said = ClientReport(terminal="error", error="permission rejected", error_kind="permission")
    found = ruling(changed=False, report=said)
    assert (summary(found), found.detail) == (("failed", "client_error", "client"), "permission rejected")


def test_a_crash_is_the_clients_error_and_a_bare_code_after_a_pass_is_a_flag() -> None:
    crash = ruling(changed=False, exit=ended("client", None, 11), report=ClientReport())
    assert summary(crash) == ("failed", "client_error", "client")
    odd = ruling(green=True, exit=ended("client", 1))
    assert (odd.verdict, odd.flags) == ("passed", ("client_rc",))


def test_case_21_B29_B52_malformed_and_textual_calls() -> None:
    bad = exchange(0, calls=(ToolCall(name="bash", arguments="{", parsed=False),))
    assert summary(ruling(changed=False, exchanges=(bad, exchange(1)))) == ("failed", "malformed_tool_calls", "model")
    text = exchange(0, calls_textual=1)
    assert summary(ruling(changed=False, exchanges=(text,))) == ("failed", "malformed_tool_calls", "model")
    refused = exchange(0, status=500, error="error parsing tool call", error_kind="tool_json")
    assert summary(ruling(changed=False, exchanges=(refused,))) == ("failed", "malformed_tool_calls", "model")
    assert summary(ruling(changed=True, green=False, exchanges=(bad, exchange(1)))) == ("failed", "wrong", "model")


def test_case_15_a_judge_limit_is_the_models_only_when_gold_is_far_below() -> None:
    late = judged(False, ended_by="wall")
    assert summary(ruling(judgement=late, gold_seconds=2.0)) == ("failed", "too_slow", "model")
    assert summary(ruling(judgement=late, gold_seconds=50.0)) == ("void", "control_broken", None)
    assert summary(ruling(judgement=late, gold_seconds=None)) == ("void", "control_broken", None)
    assert summary(ruling(judgement=judged(False, ended_by="memory"))) == ("failed", "out_of_memory", "model")


def test_flags_say_what_else_was_seen_and_change_nothing() -> None:
    history = exchange(0, calls=(ToolCall(name="bash", arguments='{"command":"git log -p"}', parsed=True),))
    found = ruling(
        green=True,
        exchanges=(history, exchange(1, cut_off=True)),
        egress=(EgressAttempt(kind="dns", destination="example.org"),),
        patch=patch(True, touched_tests=("tests/test_a.py",)),
    )
    assert summary(found) == PASS
    assert found.flags == ("cut_off", "egress_attempted", "history_read", "touched_tests")


def test_totals_of_the_engine_that_are_not_the_meters_are_flagged() -> None:
    assert ruling(green=True, counters_agree=False).flags == ("counters_differ",)
    assert ruling(green=True, counters_agree=True).flags == ruling(green=True).flags == ()


@pytest.mark.parametrize("ended_by", ["disk", "processes", "crash"])
def test_a_suite_without_results_is_wrong_and_says_why(ended_by: str) -> None:
    found = ruling(judgement=judged(False, ended_by=ended_by))
    assert summary(found) == ("failed", "wrong", "model")
    assert found.detail is not None


def test_B54_ordinary_git_use_is_no_history_read() -> None:
    plain = exchange(0, calls=(ToolCall(name="bash", arguments='{"command":"git status && git diff"}', parsed=True),))
    assert ruling(green=True, exchanges=(plain,)).flags == ()


def test_forged_results_are_never_green() -> None:
    found = ruling(judgement=judged(False, forged=True))
    assert (summary(found), found.flags) == (("failed", "wrong", "model"), ("forged_results",))


def test_unknown_is_not_held_against_anyone() -> None:
    unknown = exchange(0, model_answered=None, prompt_found=None, cut_off=None)
    assert ruling(green=True, exchanges=(unknown,), egress=None) == Ruling(verdict="passed")


def test_the_table_always_ends_in_a_ruling() -> None:
    bare = Evidence(
        voids={}, ended_by="client", changed=False, judgement=None, judge_limit_seconds=1.0, gold_seconds=None
    )  # fmt: skip
    assert rule(bare).cause == "no_edit"


def test_a_loop_that_the_clients_own_guard_ends_is_the_models() -> None:
    halted = ClientReport(terminal="error", error="Loop detection halted the run", error_kind="loop")
    assert summary(ruling(changed=False, report=halted)) == ("failed", "loop", "model")

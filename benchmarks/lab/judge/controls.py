"""The two runs whose answers are known, and the admission of a task by repeating them.

gold: the original bodies back, every fail-to-pass test must pass. excised: nothing done, every one of them must not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.lab.checkout import prepare
from benchmarks.lab.judge.run import judge
from benchmarks.lab.model import Environment, Isolation, Judgement, Record, Target, Task
from benchmarks.lab.text import count, listing


class ControlPair(Record, frozen=True, kw_only=True):
    """Both controls of a task in this batch; `why` says in one sentence what makes the task inadmissible."""

    gold: Judgement
    excised: Judgement
    required: tuple[str, ...]  # fail-to-pass, and what is green in both
    unmoved: tuple[str, ...]  # fail-to-pass tests that pass in the excised run: they cannot judge
    admissible: bool
    why: str | None

    @property
    def excised_fails(self) -> bool:
        """Whether the excised run came to its end and every fail-to-pass test failed in it."""
        return _unsound("excised", self.excised) is None and not self.unmoved


class Admission(Record, frozen=True, kw_only=True):
    """What repeating the controls showed. `flake_rate`: share of gold runs that differ from the majority, 0..1."""

    admissible: bool
    why: str | None
    flake_rate: float
    tests: int  # outcomes of the first gold run
    flipping: tuple[str, ...]  # tests green in every gold run and in no excised run
    gold_seconds: tuple[float, ...]
    excised_seconds: tuple[float, ...]


def controls(target: Target, task: Task, environment: Environment, work: Path, isolation: Isolation) -> ControlPair:
    """Run both controls of a task through the path that trials take; `work` is made and left with the two logs."""
    work.mkdir(parents=True, exist_ok=True)
    checkout = prepare(target, task, environment, work / "workspace")
    excised = judge(checkout, {}, task.fail_to_pass, isolation, work / "judge", work / "excised.log")
    kept = [test for test, outcome in excised.outcomes.items() if outcome == "passed"]
    gold = judge(checkout, checkout.solution, task.fail_to_pass, isolation, work / "judge", work / "gold.log")
    stays = [test for test in kept if gold.outcomes.get(test) == "passed"]
    required = tuple(dict.fromkeys([*task.fail_to_pass, *stays]))
    unmoved = tuple(test for test in task.fail_to_pass if excised.outcomes.get(test) == "passed")
    why = objection(task, gold, excised)
    return ControlPair(gold=gold, excised=excised, required=required, unmoved=unmoved, admissible=why is None, why=why)


def objection(task: Task, gold: Judgement, excised: Judgement) -> str | None:
    """One sentence why this pair of controls makes the task inadmissible, or None."""
    reason = _unsound("gold", gold) or _unsound("excised", excised) or _gold_fails(task, gold)
    if reason is None:
        unmoved = [test for test in task.fail_to_pass if excised.outcomes.get(test) == "passed"]
        reason = (
            f"fail_to_pass: {listing(unmoved, 2)} passes without the body, so it cannot judge it" if unmoved else None
        )
    return f"{task.id}.yaml: {reason}" if reason else None


def _unsound(name: str, run: Judgement) -> str | None:
    if run.ended_by != "suite":
        return f"the suite of the {name} control did not end by itself ({run.ended_by}), see its log"
    if run.forged:
        return f"the {name} control reports a test as passed that must fail; its results cannot be believed"
    return None


def _gold_fails(task: Task, gold: Judgement) -> str | None:
    there = "with the original body in place"
    outcomes = [(test, gold.outcomes.get(test)) for test in task.fail_to_pass]
    if gold.collected == 0:
        return f"the suite collects no test {there}"
    if gold.skipped and not gold.passed + gold.failed:
        return f"the suite skips everything ({count(gold.skipped, 'test')}) {there}"
    for wrong, says in ((None, "is not among the tests that the suite runs"), ("skipped", f"is skipped {there}")):
        if tests := [test for test, outcome in outcomes if outcome == wrong]:
            return f"fail_to_pass: {listing(tests, 2)} {says}"
    failing = [test for test, outcome in outcomes if outcome != "passed"]
    return f"fail_to_pass: {listing(failing, 2)} fails {there}" if failing else None


def admit(run: Callable[[], ControlPair], n: int = 3) -> Admission:
    """Repeat both controls `n` times; a suite whose gold outcomes differ between runs is refused with the rate."""
    pairs = [run() for _ in range(n)]
    why = next((pair.why for pair in pairs if pair.why), None)
    rate, example = flake_rate([pair.gold for pair in pairs])
    if rate > 0:
        why = f"the gold control flakes in {round(rate * n)} of {n} runs ({rate:.0%}), for instance {example}"
    return Admission(
        admissible=why is None,
        why=why,
        flake_rate=rate,
        tests=len(pairs[0].gold.outcomes),
        flipping=flipping([p.gold for p in pairs], [p.excised for p in pairs]),
        gold_seconds=tuple(pair.gold.seconds for pair in pairs),
        excised_seconds=tuple(pair.excised.seconds for pair in pairs),
    )


def flake_rate(golds: Sequence[Judgement]) -> tuple[float, str | None]:
    """Share of runs in which some test came out unlike its majority, and one such test."""
    tests = dict.fromkeys(test for gold in golds for test in gold.outcomes)
    odd: set[int] = set()
    example = None
    for test in tests:
        seen = [gold.outcomes.get(test) for gold in golds]
        usual = max(seen, key=seen.count)
        strange = {index for index, outcome in enumerate(seen) if outcome != usual}
        example = example or (test if strange else None)
        odd |= strange
    return (len(odd) / len(golds) if golds else 0.0), example


def flipping(golds: Sequence[Judgement], exciseds: Sequence[Judgement]) -> tuple[str, ...]:
    """Tests that pass in every gold run and in no excised run, in the suite's order."""
    first = golds[0].outcomes if golds else {}
    return tuple(
        test
        for test in first
        if all(gold.outcomes.get(test) == "passed" for gold in golds)
        and not any(excised.outcomes.get(test) == "passed" for excised in exciseds)
    )

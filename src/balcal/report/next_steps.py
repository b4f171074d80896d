"""The section "What to do next": a sentence and a command for each step, by what the verdict says."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from markupsafe import Markup

from balcal.metrics.verdict import Verdict
from balcal.report.content import Content, View
from balcal.report.page import Section, fill
from balcal.report.svg import pct

TEMPLATE = """
{% call(view) each_view(content.views) %}
<ol class="steps">
{% for step in steps(content, view) %}
<li>{{ step.sentence }}{% if step.command %}<br><code>{{ step.command }}</code>{% endif %}</li>
{% endfor %}
</ol>
{% endcall %}
"""
HELD_OUT = "HELD_OUT.npz"
"""stands in commands for predictions of other samples, which only the user has"""


@dataclass(frozen=True)
class Step:
    sentence: str
    command: str = ""


def steps(content: Content, view: View) -> list[Step]:
    """First what the verdict asks for, then the use of the model."""
    return [*_by_verdict(content, view), *(_of_run(content) if content.run else _of_file(content.source))]


def _by_verdict(content: Content, view: View) -> list[Step]:
    found = view.verdict
    if found.kind == "few":
        return [Step(f"Test it on more samples: about {found.samples_needed:,} would tell a gap of {_points(found)}.")]
    if found.kind == "perfect":
        return [Step("There is nothing to correct: use these probabilities as they are.")]
    if content.run is None:
        return [_calibrate(content.source)]
    better = [each for each in content.views if each is not view and each.verdict.ece < found.ece]
    if better:
        return [Step(f"ECE is {pct(better[0].verdict.ece, 2)} {better[0].title}: choose that view above.")]
    task, method = content.run.recipe.task.name, content.run.recipe.method.name
    if method.startswith("balcal-auto"):
        return []
    return [Step("Train with what we recommend, and compare:", f"balcal train {task} balcal-auto")]


def _points(found: Verdict) -> str:
    return f"{found.matters * 100:g} points"


def _calibrate(source: str) -> Step:
    sentence = (
        "Correct it: fit a calibrator on predictions of other samples that have labels, and see what it changes here."
    )
    if source:
        return Step(sentence, f"balcal calibrate {HELD_OUT} --apply {source} --out calibrated.npz")
    return Step(sentence, "balcal.Calibrator().fit(held_out_probs, held_out_labels).predict_proba(probs)")


def _of_file(source: str) -> list[Step]:
    if not source:
        return [
            Step(
                "Choose from which confidence on it may act, on other samples:",
                "balcal.decisions.threshold(probs=held_out_probs, labels=held_out_labels, accuracy=0.99)",
            ),
            Step("Watch it in production:", "balcal.Monitor"),
        ]
    return [
        Step(
            "Choose from which confidence on it may act, on other samples, and check the promise here:",
            f"balcal decide {HELD_OUT} --accuracy 0.99 --check {source}",
        ),
        Step("Compare its ECE with numbers of other tools and papers:", f"balcal audit {source}"),
    ]


def _of_run(content: Content) -> list[Step]:
    assert content.run is not None
    place = shlex.quote(str(content.run.path))
    made = []
    if not any(view.shift or view.ood for view in content.views):
        made.append(Step("Test it on corrupted and on other images:", f"balcal evaluate {place} --shift --ood"))
    made.append(Step("Choose from which confidence on it may act:", f"balcal decide {place} --accuracy 0.99"))
    return [*made, Step("Export it, from pixels to calibrated probabilities:", f"balcal export {place} --to onnx")]


def next_section(content: Content) -> Markup:
    return fill(TEMPLATE, content=content, steps=steps)


SECTIONS = (Section("What to do next", 70, next_section),)

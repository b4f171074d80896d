"""Pages: complete, self-contained, with the right numbers, and shut to whatever a name may try."""

import json
import re
import sys
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from command_line import balcal_cli
from page_samples import (
    HISTORY,
    HOSTILE,
    balcal_run,
    hostile_story,
    predictions,
    small_arena,
)
from pages import Page, check_self_contained
from samples import draw

from balcal import report
from balcal.arena.columns import COLUMNS
from balcal.arena.headline import headline
from balcal.arena.result import ArenaResult
from balcal.arena.tables import rows
from balcal.core import BalcalError
from balcal.plots.numbers import class_table, coverage_table, reliability_table
from balcal.report import predictions as charts
from balcal.report import write_report
from balcal.report.arena import arena_page, ranks
from balcal.report.content import content_of_predictions
from balcal.report.page import run_page
from balcal.report.training import epoch_charts
from balcal.runs import Run


def elements(svg, class_):
    """Of one drawing or several."""
    root = ElementTree.fromstring(f"<div>{svg}</div>")
    return [e for e in root.iter() if class_ in e.get("class", "").split()]


def test_the_page_of_a_run(tmp_path, capsys):
    out = tmp_path / "page.html"
    code, told, err = balcal_cli("report", balcal_run(), "--out", out, "--json", capsys=capsys)
    assert code == 0, err
    assert json.loads(told) == {"report": str(out), "bytes": out.stat().st_size}
    assert out.stat().st_size < 3_000_000
    page = check_self_contained(out.read_text())
    run = Run.at(balcal_run())
    figures = json.loads((run.path / "metrics.json").read_text())["test"]
    for shown in (
        f"ECE {figures['ece'] * 100:.2f} % [{figures['ece_interval'][0] * 100:.2f}, "
        f"{figures['ece_interval'][1] * 100:.2f}]",
        f"noise floor {figures['floor_mean'] * 100:.2f} %, up to {figures['floor_high'] * 100:.2f} %",
        "as trained",
        "after temperature scaling",
        "The learnable classifier by itself",
        "The fixed ETF classifier by itself",
        "mean confidence is to meet its target",
        "balcal train digits balcal --seed 0 --set plan.epochs=2",
        "judges; nothing is fitted or chosen on it",
    ):
        assert shown in page.text, shown
    assert "As images get worse" not in page.text
    assert "Out-of-distribution images" not in page.text
    assert sum(tag == "img" for tag, _ in page.tags) > 0, "its most confident mistakes are shown"
    learnable = run.load_predictions("test-branch0")
    assert len(learnable) == figures["samples"], "what each classifier says by itself is kept"


UNSURE = """
from balcal.core import BalcalError
from balcal.report.page import Section, fill

TEMPLATE = '''
{% call(view) each_view(content.views) %}
<p>{{ view.title }}: {{ unsure(view) }} of {{ view.verdict.samples }} below 50 %</p>
{% endcall %}
'''


def unsure(view):
    return int((view.predictions.probs.amax(1) < 0.5).sum())


def body(content):
    return fill(TEMPLATE, content=content, unsure=unsure)


def fails(content):
    raise BalcalError("seed {} has no such thing".format(content.run.recipe.seed))


SECTIONS = (
    Section("Where it is unsure", 25, body),
    Section("Nothing to show", 26, lambda content: None),
    Section("Cannot be had", 27, fails),
)
"""


def test_one_new_file_adds_a_section(tmp_path, capsys, monkeypatch):
    (tmp_path / "unsure.py").write_text(UNSURE)
    monkeypatch.setattr(report, "__path__", [*report.__path__, str(tmp_path)])
    monkeypatch.setitem(sys.modules, "balcal.report.unsure", None)
    monkeypatch.delitem(sys.modules, "balcal.report.unsure")
    out = tmp_path / "page.html"
    code, _, err = balcal_cli("report", balcal_run(), "--out", out, capsys=capsys)
    assert code == 0, err
    page = check_self_contained(out.read_text())
    test = Run.at(balcal_run()).load_predictions("test")
    few = sum(float(row.max()) < 0.5 for row in test.probs)
    assert f"Where it is unsure as trained: {few} of {len(test)} below 50 % after temperature scaling: " in page.text
    places = [page.text.index(title) for title in ("When should one", "Where it is unsure", "Its most confident")]
    assert places == sorted(places), "sections stand in order"
    assert "Nothing to show" not in page.text
    assert "“Cannot be had” is left out: seed 0 has no such thing." in page.text


def test_shift_and_outside_sets_are_shown_where_they_were_evaluated(tmp_path, capsys):
    """From the evaluation to the page by the command line: what one writes is what the other reads."""
    run = Run.at(balcal_run())
    arguments = ("--corruptions", "fog,snow", "--against", "fashion", "--quiet", "--json")
    code, told, error = balcal_cli("evaluate", run.path, *arguments, capsys=capsys)
    assert code == 0, error
    try:
        assert balcal_cli("report", run.path, "--out", tmp_path / "page.html", capsys=capsys)[0] == 0
        page = Page((tmp_path / "page.html").read_text())
        assert "2 corruptions in 5 severities" in page.text
        assert "Not evaluated after temperature scaling." in page.text
        auroc = json.loads(told)["ood"]["sets"]["fashion"]["scores"]["confidence"]["auroc"]
        assert f"fashion confidence {100 * auroc:.1f} %" in page.text
        assert "digits fashion" in page.text, "the confidences of both sets are drawn"
        (run.path / "shift.json").write_text("{")
        with pytest.raises(BalcalError, match=r"shift.json is damaged: delete it"):
            write_report(run.path, tmp_path / "page.html")
    finally:
        for path in [*run.path.glob("*shift.json"), run.path / "ood.json"]:
            path.unlink()


def test_the_page_of_plain_predictions(tmp_path):
    told = predictions()
    np.savez(tmp_path / "mine.npz", probs=told.probs.numpy(), labels=told.labels.numpy())
    assert write_report(tmp_path / "mine.npz")["report"] == str(tmp_path / "mine.html")
    page = check_self_contained((tmp_path / "mine.html").read_text())
    assert "mine.npz" in page.text
    assert "How it was trained" not in page.text
    assert "balcal calibrate HELD_OUT.npz --apply" in page.text, "it says what to do next"
    assert f"balcal audit {tmp_path / 'mine.npz'}" in page.text
    assert "class 3" in page.text
    with pytest.raises(BalcalError, match="neither a run's folder nor a file"):
        write_report(tmp_path / "nothing")


def test_predictions_with_names_of_classes(tmp_path, capsys):
    """In the file, where labels may be names too, or on the command line."""
    told, names = predictions(), np.array(["cat", "dog", "bird", "fish"])
    np.savez(tmp_path / "a.npz", probs=told.probs.numpy(), labels=told.labels.numpy())
    np.savez(tmp_path / "b.npz", probs=told.probs.numpy(), labels=names[told.labels.numpy()], classes=names)
    assert balcal_cli("report", tmp_path / "a.npz", "--classes", "cat,dog,bird,fish", capsys=capsys)[0] == 0
    assert balcal_cli("report", tmp_path / "b.npz", capsys=capsys)[0] == 0
    pages = [Page((tmp_path / name).read_text()).text for name in ("a.html", "b.html")]
    assert pages[0].replace("a.npz", "b.npz") == pages[1]
    for name in names:
        assert pages[0].count(name) > 2
    code, _, err = balcal_cli("report", tmp_path / "a.npz", "--classes", "cat,dog", capsys=capsys)
    assert (code, "there are 2 names for 4 classes" in err) == (1, True)
    np.savez(tmp_path / "c.npz", probs=told.probs.numpy(), labels=np.array(["cow"] * 400), classes=names)
    np.savez(tmp_path / "d.npz", probs=told.probs.numpy(), labels=told.labels.numpy(), classes=np.arange(1, 5))
    for file, words in (
        ("c", "the label `cow` is none of the names"),
        ("d", "must be the names of the classes as text"),
    ):
        code, _, err = balcal_cli("report", tmp_path / f"{file}.npz", capsys=capsys)
        assert (code, words in err) == (1, True), err


def test_every_axis_has_a_title_and_every_sign_a_word():
    page = run_page(hostile_story())
    drawings = [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", page, re.S)]
    with_axes = [d for d in drawings if [e for e in d.iter() if e.get("class") == "base"]]
    assert len(with_axes) > 15
    for drawing in with_axes:
        words = [e.text for e in drawing.iter() if e.get("class") == "name"]
        about = drawing.get("aria-label")
        numbers_up = [e for e in drawing.iter() if e.get("class") == "tick" and e.get("text-anchor") == "end"]
        shares_its_x_axis = about.startswith("Confidence when right")
        assert len(words) == 1 + (len(numbers_up) > 1) - shares_its_x_axis or about.startswith("ECE"), about
    text = Page(page).text
    assert "a black tick marks its height" in text
    assert "test labels" not in text, "nobody knows of wrong labels here"
    known = Page(run_page(replace(hostile_story(), wrong_labels="About 6 % of these test labels are wrong."))).text
    assert "Wrong, and sure of it. About 6 % of these test labels are wrong." in known


def test_thresholds_stand_on_the_risk_curve():
    told = predictions()
    svg = charts.coverage(coverage_table(told))
    conf, wrong = told.probs.numpy().max(1), told.probs.numpy().argmax(1) != told.labels.numpy()
    marks, words = elements(svg, "at"), [e.text.replace("\N{NO-BREAK SPACE}", " ") for e in elements(svg, "limit")]
    assert len(marks) == len(words) > 1
    order = np.argsort(-conf, kind="stable")
    scale = 276 - min(y for _, y in points(elements(svg, "risk")[0]))  # pixels of the highest risk
    scale /= (np.cumsum(wrong[order]) / np.arange(1, len(wrong) + 1)).max()
    for mark, word in zip(marks, words, strict=True):
        accepted = conf >= float(word[2:-2]) / 100
        assert float(mark.get("cx")) == pytest.approx(44 + accepted.mean() * (460 - 44 - 12), abs=0.02)
        assert float(mark.get("cy")) == pytest.approx(276 - scale * wrong[accepted].mean(), abs=0.2)


def test_hostile_names_stay_text():
    page = check_self_contained(run_page(hostile_story()))
    plain = check_self_contained(run_page(replace(hostile_story(), classes=["a", "b", "c", "d"])))
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in plain.tags], "names add no element"
    for name in HOSTILE:
        assert name in page.text
    tips = [a["data-tip"] for _, a in page.tags if "data-tip" in a]
    assert any(tip.startswith(HOSTILE[1]) for tip in tips)


def test_hostile_names_in_an_arena_stay_text():
    _, result = small_arena()
    names = dict(zip(result.entries, HOSTILE, strict=True))
    bad = replace(
        result,
        task=HOSTILE[2],
        entries=tuple(names.values()),
        reference=HOSTILE[0],
        cells=tuple(replace(cell, entry=names[cell.entry], run=HOSTILE[1]) for cell in result.cells),
        runs=tuple(replace(run, run=HOSTILE[3]) for run in result.runs),
        made={HOSTILE[0]: HOSTILE[1]},
    )
    page = check_self_contained(arena_page(bad))
    for name in HOSTILE:
        assert name in page.text
    assert "No diagram of" in page.text, "there is no such run, and the page says so"


def test_the_page_of_an_arena(tmp_path):
    runs, result = small_arena()
    path = next((runs / "arena").glob("*.json"))
    write_report(path, tmp_path / "arena.html")
    page = check_self_contained((tmp_path / "arena.html").read_text())
    assert len([1 for tag, a in page.tags if tag == "figure" and a.get("class") == "small"]) == len(result.entries)
    for row in result.rows():
        ece = row["ece"]
        low, high = (f"{end * 100:.2f}" for end in row["ece_interval"])
        assert f"{ece['mean'] * 100:.2f} ± {ece['std'] * 100:.2f} [{low}, {high}]" in page.text
    sorts = [float(a["data-sort"]) for tag, a in page.tags if tag == "td" and a.get("data-sort")]
    assert any(value == result.rows()[0]["nll"]["mean"] for value in sorts)


def test_the_page_of_an_arena_with_one_seed(tmp_path, capsys):
    """All the way through the command line; its judgements speak of these runs only."""
    table = tmp_path / "arena.json"
    arguments = ["digits", "--methods", "vanilla,balcal", "--seeds", "1", "--set", "plan.epochs=1", "--quiet"]
    code, _, err = balcal_cli("arena", *arguments, "--runs", tmp_path, "--out", table, capsys=capsys)
    assert code == 0, err
    code, out, err = balcal_cli("report", table, capsys=capsys)
    assert (code, err) == (0, "")
    assert out.startswith(f"report: {tmp_path / 'arena.html'} (")
    page = check_self_contained((tmp_path / "arena.html").read_text())
    assert "one seed cannot say whether that is chance" in page.text
    assert not [a for tag, a in page.tags if tag == "span" and a.get("class") == "leads"], "one seed has no leader"
    rows = json.loads(table.read_text())["rows"]
    told = [row[f]["against"]["judgement"] for row in rows for f in ("accuracy", "nll") if row[f]["against"]]
    assert "worse here" in told or "better here" in told, "the case must exercise what is said of single runs"
    assert ("(▼)" in page.text) == any("worse here" in str(row) for row in rows)
    assert any("this run is " in a.get("data-tip", "") for _, a in page.tags)


def places(value, path=()):
    """Every place in nested data; of a list, its first element stands for all."""
    yield path
    if isinstance(value, dict):
        for name in value:
            yield from places(value[name], (*path, name))
    elif isinstance(value, list) and value:
        yield from places(value[0], (*path, 0))


def changed(told, path, value):
    *before, last = path
    inside = told
    for name in before:
        inside = inside[name]
    inside[last] = value
    if value is GONE:
        del inside[last]
    return told


GONE = object()
WRONG = [None, [], {}, 3, "x", True, [[]], [None], {"x": None}, GONE]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numbers that make no sense
def test_json_that_is_no_arena_is_one_sentence_and_else_makes_a_page(tmp_path, capsys):
    """Each part of a good result is replaced by each of several others: it is refused, or all is made of it."""
    path, told = tmp_path / "a.json", small_arena()[1].as_dict()
    told |= {"made": {"runs": str(tmp_path)}}
    told["searches"] = [{"method": "a", "by": "b", "tried": [{"settings": ["c=1"]}], "chosen": ["c=1"]}]
    told["runs"] = [run | {"recipe": {}, "environment": {}} for run in told["runs"]]
    needed = (*COLUMNS, "floor_mean", "floor_high", "ece_interval")
    told["cells"] = [cell | {"figures": {name: cell["figures"][name] for name in needed}} for cell in told["cells"]]
    text, refused, made = json.dumps(told), 0, 0
    for place in list(places(json.loads(text)))[1:]:
        for wrong in WRONG if place[0] != "chance" or "accuracy" in place else ():
            path.write_text(json.dumps(changed(json.loads(text), place, wrong)))
            try:
                result = ArenaResult.load(path)
            except BalcalError:
                refused += 1
                continue
            try:
                assert arena_page(result) + result.table("runs") + result.table("latex")
                made += 1
            except Exception as error:
                pytest.fail(f"{place} as {wrong!r}: {error!r}")
    assert refused > 300
    assert made > 10
    for content in (b"null", b"[]", b"3", b'"x"', b"{}", b"", b"[" * 100_000, b"\xff", text[:-9].encode()):
        path.write_bytes(content)
        code, _, err = balcal_cli("report", path, capsys=capsys)
        assert (code, err.count("\n")) == (1, 1), content
        assert re.match(r"balcal: .*a\.json is not the result of an arena \(.+\): make one with `balcal arena`", err)
    code, _, err = balcal_cli("report", tmp_path / "none.json", capsys=capsys)
    assert (code, err) == (1, f"balcal: cannot read {tmp_path / 'none.json'} (No such file or directory)\n")
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_ranks_by_hand():
    _, result = small_arena()
    told = {row.entry: row for row in ranks(result)}
    for column, (figure, higher) in enumerate((("accuracy", True), ("ece", False))):
        for entry in result.entries:
            places = []
            for seed in range(2):
                mine = result.values(entry, figure)[seed]
                others = [result.values(other, figure)[seed] for other in result.entries]
                ahead = sum(v > mine if higher else v < mine for v in others)
                places.append(ahead + (1 + others.count(mine)) / 2)
            assert told[entry].cells[column].rank == pytest.approx(np.mean(places))


def test_bars_and_gaps_are_as_high_as_the_numbers_say():
    told = predictions()
    svg = charts.reliability(reliability_table(told, 15), small=True)
    probs, labels = told.probs.numpy(), told.labels.numpy()
    expected = []
    for b in range(15):
        inside = [i for i in range(len(labels)) if b / 15 < probs[i].max() <= (b + 1) / 15]
        if inside:
            right = np.mean([probs[i].argmax() == labels[i] for i in inside])
            expected.append((right, np.mean([probs[i].max() for i in inside])))
    heights = [float(bar.get("height")) for bar in elements(svg, "bar")]
    full = 274 - 40 - 28
    assert heights == pytest.approx([acc * full for acc, _ in expected], abs=0.01)
    gaps = [float(e.get("height")) for c in ("over", "under") for e in elements(svg, c)]
    assert sorted(gaps) == pytest.approx(sorted(abs(conf - acc) * full for acc, conf in expected), abs=0.01)
    assert len(elements(svg, "over")) == sum(conf > acc for acc, conf in expected)


def points(path):
    return [tuple(map(float, pair.split())) for pair in re.split("[ML]", path.get("d"))[1:]]


def test_lines_pass_through_the_numbers():
    told = predictions()
    risk = elements(charts.coverage(coverage_table(told)), "risk")[0]
    order = np.argsort(-told.probs.numpy().max(1), kind="stable")
    wrong = (told.probs.numpy().argmax(1) != told.labels.numpy())[order]
    expected = np.cumsum(wrong) / np.arange(1, len(wrong) + 1)
    ys = np.array([y for _, y in points(risk)])
    base, (high, at) = 316 - 40, (expected.max(), expected.argmax())
    scale = (base - ys[at]) / high
    assert (base - ys) / scale == pytest.approx(expected, abs=0.002)
    gamma = epoch_charts(HISTORY, chosen=2)[0]
    (line,) = elements(gamma.svg, "line")
    drops = np.diff([y for _, y in points(line)])
    assert drops == pytest.approx(drops[0], abs=0.11), "gamma falls by 0.1 each epoch"
    assert "epoch 3, chosen" in gamma.svg


def test_classes_tell_their_numbers():
    told = predictions()
    table = class_table(told)
    svg = charts.classes(table, ["a", "b", "c", "d"])
    picks, labels = told.probs.argmax(1).numpy(), told.labels.numpy()
    for k, name in enumerate("abcd"):
        mine = picks == k
        (row,) = [e for e in elements(svg, "row") if e.get("data-tip").startswith(f"{name}:")]
        told_right = f"right {np.mean(labels[mine] == k) * 100:.1f} %"
        assert told_right in row.get("data-tip").replace("\N{NO-BREAK SPACE}", " ")
        assert f"predicted {mine.sum():,} times" in row.get("data-tip")


def test_a_model_without_mistakes_and_a_single_class_predicted():
    told = predictions(n=60)
    sure = replace(told, log_probs=np.log(0.91) * 0 + told.log_probs, labels=told.probs.argmax(1))
    check_self_contained(run_page(content_of_predictions(sure, "flawless")))
    one = replace(
        told, log_probs=told.log_probs[told.probs.argmax(1) == 0], labels=told.labels[told.probs.argmax(1) == 0]
    )
    check_self_contained(run_page(content_of_predictions(one, "one class")))


def test_the_header_admits_ignorance_and_shows_p_values(tmp_path):
    perfect, rng = tmp_path / "perfect.npz", np.random.default_rng(0)
    p, _ = draw(1, n=40)
    np.savez(perfect, probs=p, labels=(p.cumsum(1) < rng.random((40, 1))).sum(1).clip(max=3))
    write_report(perfect)
    page = check_self_contained((tmp_path / "perfect.html").read_text()).text
    assert "Too few samples to tell: a gap of up to" in page
    assert "samples would tell a gap of 3" in page
    for words in ("Spiegelhalter", "Kuiper", "p-value", "refinement", "miscalibration"):
        assert words in page


def table_of(result, **values):
    """Rows of a real arena with other ECEs, one value per seed; those with a `?` tie with the best."""
    rows_of = iter(rows(result) * len(values))
    made = []
    for name, each in values.items():
        row, numbers = next(rows_of), [abs(v) for v in each]
        ece = replace(row.columns["ece"], values=numbers, mean=float(np.mean(numbers)), ties_best=each[0] > 0)
        made.append(replace(row, entry=name, columns={**row.columns, "ece": ece}))
    return made


def test_the_headline_of_an_arena_answers():
    """Who is worse, who cannot be told apart, and how many seeds would tell: 2.8^2 var / 0.01^2."""
    _, result = small_arena()
    three = replace(result, seeds=(0, 1, 2), entries=("ts",), cells=tuple(result.cells[:1]) * 3)
    three = replace(three, cells=tuple(replace(c, entry="ts", seed=s) for s, c in enumerate(three.cells)))
    best, near, far = (0.01, 0.02, 0.03), (0.03, 0.02, 0.04), (-0.2, -0.2, -0.2)  # minus: worse than the best
    said = headline(three, table_of(result, ts=best, balcal=near, fl=far))  # differences 0.02, 0.00, 0.01
    assert said == (
        "fl is worse than the best, ts; the other one cannot be told from it with 3 seeds; "
        "8 would tell a difference of 1 point"
    )
    said = headline(three, table_of(result, ts=best, balcal=near))
    assert said.startswith("None of the 2 can be told from the best, ts, with 3 seeds")
    assert headline(three, table_of(result, ts=best, fl=far)) == "ts is better calibrated than all others"
    assert headline(result, rows(result)) + "." in result.table(), "the terminal says it too"


def test_bold_is_the_best_mean_alone():
    _, result = small_arena()
    lines = [line for line in result.table().splitlines() if line.startswith("| `")]
    cells = np.array([line.split("|")[2:-1] for line in lines])
    for name, column in (("accuracy", 0), ("ece", 1), ("nll", 4)):
        bold = [entry for entry, cell in zip(result.entries, cells[:, column], strict=True) if "**" in cell]
        assert bold == [result.best(name)]
        tied = {row["entry"] for row in result.rows() if row[name]["ties_best"]} - set(bold)
        assert {e for e, cell in zip(result.entries, cells[:, column], strict=True) if "≈" in cell} == tied
    latex = result.table("latex")
    assert latex.count(r"\textbf") == result.table().count("**") / 2
    assert r"$^{\approx}$" in latex
    page = arena_page(result)
    assert page.count('class="leads"') == len(result.compared)
    assert page.count('class="tied"') == result.table().count("≈") - 1, "one more in the legend"

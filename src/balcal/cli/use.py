"""Verbs that train nothing: they read runs, predictions in files, data sets, and the catalog."""

from __future__ import annotations

import json as _json
from pathlib import Path
from typing import Annotated

import typer

from balcal.cli.options import Device, Json, Kind, Labels, Offline, Quiet, app
from balcal.cli.text import print_figures, print_list, print_method, print_table, say, show_metric


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="A run folder, as printed by `balcal train`.")],
    method: Annotated[str | None, typer.Option("--with", help="A post-hoc method to add, for example ts.")] = None,
    shift: Annotated[bool, typer.Option("--shift", help="Also on corrupted test images, five severities.")] = False,
    corruptions: Annotated[str, typer.Option(help="Corruptions, joined by commas; else those of the data set.")] = "",
    published: Annotated[bool, typer.Option("--published", help="Published files such as CIFAR-10-C.")] = False,
    ood: Annotated[bool, typer.Option("--ood", help="Also OOD detection against other data sets.")] = False,
    against: Annotated[str, typer.Option(help="OOD sets, joined by commas; else those of the data set.")] = "",
    human: Annotated[bool, typer.Option("--human", help="Also against human labels (CIFAR-10H).")] = False,
    device: Device = None,
    offline: Offline = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Print the figures of a trained run on its test split, and beyond it."""
    from balcal import registry
    from balcal.evaluation.beyond import BeyondOptions, evaluate_beyond
    from balcal.evaluation.judge import evaluate as evaluate_run
    from balcal.runs import Run
    from balcal.runtime.devices import pick_device

    found, place = Run.at(run), pick_device(device)
    whole = found.recipe.method + registry.method(method) if method else found.recipe.method
    figures = evaluate_run(found, whole, place)
    options = BeyondOptions(shift or bool(corruptions) or published, ood or bool(against), human, published)
    options = options.naming(corruptions, against)
    print_figures(figures, json, evaluate_beyond(found, whole, place, options, quiet))


@app.command()
def calibrate(
    source: Annotated[str, typer.Argument(help="A run folder; or FILE.npz with held-out predictions to fit on.")],
    method: Annotated[
        str, typer.Option("--with", help="auto, ts, svs, sms, beta, platt, isotonic, ...; auto chooses one.")
    ] = "auto",
    apply: Annotated[str | None, typer.Option(help="FILE.npz to calibrate, when SOURCE is a file.")] = None,
    labels: Labels = None,
    kind: Kind = None,
    out: Annotated[Path | None, typer.Option(help="Write the calibrated probabilities to this .npz.")] = None,
    device: Device = None,
    json: Json = False,
) -> None:
    """Fit a post-hoc method on held-out predictions, and show what it changes on others."""
    from balcal import registry
    from balcal.evaluation.judge import evaluate as evaluate_run
    from balcal.runs import Run
    from balcal.runtime.devices import pick_device

    if Path(source).is_dir():
        if apply or out:
            raise typer.BadParameter("--apply and --out go with a file; a run has its own test split")
        found = Run.at(Path(source))
        print_figures(evaluate_run(found, found.recipe.method + registry.method(method), pick_device(device)), json)
        return
    from balcal.cli.predictions import calibrate_arrays

    result = calibrate_arrays(source, method, apply, labels, kind, out)
    say(_json.dumps(result.as_dict(), indent=2) if json else result)


@app.command()
def decide(
    source: Annotated[str, typer.Argument(help="A run folder; or FILE.npz with held-out predictions.")],
    accuracy: Annotated[
        float | None, typer.Option(help="Act from a confidence on, and be right this often; 0.99 if nothing is asked.")
    ] = None,
    error_rate: Annotated[float | None, typer.Option(help="Or: mistakes in at most this share of all samples.")] = None,
    confidence: Annotated[float, typer.Option(help="Probability that the promise is true.")] = 0.95,
    per_class: Annotated[bool, typer.Option("--per-class", help="A threshold, or sets, for each class.")] = False,
    sets: Annotated[
        float | None, typer.Option(help="Sets of classes that hold the label this often, e.g. 0.9.")
    ] = None,
    score: Annotated[str, typer.Option(help="Of the sets: lac, aps or raps.")] = "lac",
    costs: Annotated[
        Path | None, typer.Option(help="FILE.csv: a line for each true class, a column for each action.")
    ] = None,
    groups: Annotated[
        str | None, typer.Option(help="A threshold and a test for each group: a text file of names, or .npy.")
    ] = None,
    check: Annotated[str | None, typer.Option(help="FILE.npz of other predictions to check the promises on.")] = None,
    method: Annotated[str | None, typer.Option("--with", help="A post-hoc method to add to a run, e.g. ts.")] = None,
    labels: Labels = None,
    kind: Kind = None,
    json: Json = False,
) -> None:
    """When may it act? Thresholds, prediction sets and cheapest actions, with guarantees."""
    from balcal.cli.decisions import DecideOptions, decide_about

    options = DecideOptions(accuracy, error_rate, confidence, per_class, sets, score, costs, groups)
    result = decide_about(source, options, check, method, labels, kind)
    say(_json.dumps(result.as_dict(), indent=2) if json else result)


@app.command()
def report(
    source: Annotated[str, typer.Argument(help="A run folder, an arena's FILE.json, or FILE.npz with predictions.")],
    out: Annotated[
        Path | None, typer.Option(help="Where to write it, FILE.html; beside the source if left out.")
    ] = None,
    method: Annotated[
        str, typer.Option("--with", help="The post-hoc method to show beside the run as trained.")
    ] = "ts",
    labels: Labels = None,
    kind: Kind = None,
    classes: Annotated[
        str | None, typer.Option(help="Names of the classes: a,b,c or a text file with a name in each line.")
    ] = None,
    offline: Offline = False,
    json: Json = False,
) -> None:
    """Write one HTML page about a run, an arena or predictions; it needs no other file and no network."""
    from balcal.evaluation.prediction_files import read_names
    from balcal.report import write_report

    written = write_report(source, out, method, labels, kind, read_names(classes) if classes else None)
    say(_json.dumps(written, indent=2) if json else f"report: {written['report']} ({written['bytes'] / 1000:,.0f} kB)")


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    to: Annotated[str, typer.Option(help="onnx, torch-export or state")] = "onnx",
    out: Annotated[Path | None, typer.Option(help="The file to write; in the run's folder if left out.")] = None,
    method: Annotated[
        str | None, typer.Option("--with", help="A post-hoc method to put inside, for example ts.")
    ] = None,
    most: Annotated[int | None, typer.Option(help="Verify on so many test images; all if left out.")] = None,
    accuracy: Annotated[float, typer.Option(help="What the output `accept` promises.")] = 0.99,
    sets: Annotated[float, typer.Option(help="How often the output `set` holds the label.")] = 0.9,
    offline: Offline = False,
    json: Json = False,
) -> None:
    """Export a run as one file from raw pixels to calibrated probabilities; verified, with a model card."""
    from balcal.deploy.card import render_card
    from balcal.deploy.export import export_run

    card = export_run(run, to, out, method, most, accuracy, sets)
    say(
        _json.dumps(card, indent=2)
        if json
        else f"{render_card(card)}\nfile: {card['file']} ({card['bytes'] / 1e6:,.1f} MB)"
    )


@app.command()
def data(
    name: Annotated[str | None, typer.Argument(help="A task or a data set; all of them if left out.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write a contact sheet to this .png.")] = None,
    offline: Offline = False,
    json: Json = False,
) -> None:
    """Show a data set, downloaded if missing: its files, the splits of a task, and a contact sheet."""
    from balcal.cli.data import render_stock, stock_list, take_stock

    stock = take_stock(name, out) if name else stock_list()
    say(_json.dumps(stock, indent=2, ensure_ascii=False) if json else render_stock(stock))


@app.command()
def verdict(
    predictions: Annotated[str, typer.Argument(help="FILE.npz (probs, log_probs or logits, and labels), or a run.")],
    details: Annotated[
        bool, typer.Option("--details", help="Tests of perfect calibration, and what NLL and Brier are made of.")
    ] = False,
    matters: Annotated[float, typer.Option(help="The smallest gap of confidence and accuracy that matters.")] = 0.03,
    labels: Labels = None,
    kind: Kind = None,
    json: Json = False,
) -> None:
    """What predictions are worth: accuracy, ECE with interval and noise floor, and one sentence."""
    from balcal.evaluation.prediction_files import read_source
    from balcal.metrics.verdict import verdict as judge
    from balcal.report.content import recalibrations

    read = read_source(predictions, labels, kind)
    more = recalibrations(*read.rows.whole().shape) if details else None
    found = judge(**read.named(), matters=matters, details=details, recalibrate=more)
    say(_json.dumps(found.as_dict() | {"sentence": found.sentence()}, indent=2) if json else found)


@app.command()
def audit(
    predictions: Annotated[str, typer.Argument(help="FILE.npz (probs, log_probs or logits, and labels), or a run.")],
    labels: Labels = None,
    kind: Kind = None,
    json: Json = False,
) -> None:
    """ECE as Guo et al., torchmetrics, netcal and the paper's code compute it, and why they differ."""
    from balcal.evaluation.prediction_files import read_source
    from balcal.metrics.audit import SAME
    from balcal.metrics.audit import audit as audit_arrays

    audited = audit_arrays(**read_source(predictions, labels, kind).named())
    if json:
        say(_json.dumps(audited.as_dict(), indent=2))
        return
    print_table(
        ["convention", "ECE %", "differs", "why"],
        [
            [f.name, f"{f.value * 100:.3f}", f"{f.difference * 100:+.3f}" if abs(f.difference) >= SAME else "", f.why]
            for f in audited.findings
        ],
        f"{audited.samples:,} samples, {audited.classes} classes",
    )
    mean, high = audited.floor_mean, audited.floor_high
    say(f"A perfect model with these confidences scores {mean:.2%} on average, up to {high:.2%}.")


@app.command()
def check(run: Annotated[Path, typer.Argument(help="A run folder.")], json: Json = False) -> None:
    """Check that recipe, data, checkpoints, predictions and figures of a run belong together, by their digests."""
    from balcal.evaluation.check_run import check_run

    checked = check_run(run)
    say(_json.dumps(checked.as_dict(), indent=2) if json else checked)
    if checked.findings:
        raise typer.Exit(1)


@app.command(name="list")
def list_(
    kind: Annotated[str, typer.Argument(help="methods, tasks, datasets, backbones or metrics")] = "methods",
    every: Annotated[bool, typer.Option("--all", help="Also methods that were tried and did not win.")] = False,
    json: Json = False,
) -> None:
    """List methods, tasks, data sets, backbones or metrics by name."""
    print_list(kind, json, every)


@app.command()
def show(
    method: Annotated[str, typer.Argument(help="A method, or several joined by +; or a metric.")], json: Json = False
) -> None:
    """Show what a method changes, with its settings and its formula; or what a metric measures."""
    from balcal import registry

    metrics = registry.table("metrics")
    if method in metrics:
        show_metric(method, metrics[method], json)
    else:
        print_method(method, json)

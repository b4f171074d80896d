"""The command line: thin verbs. Results go to stdout, talk to stderr; exit code 0 only on success."""

from __future__ import annotations

import json as _json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from balcal.naming import plain
from balcal.printing import print_figures, print_list, print_method, print_table, say, show_metric

app = typer.Typer(
    help="Classifiers whose confidence can be trusted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _stay_offline(told: bool) -> bool:
    if told:
        os.environ["BALCAL_OFFLINE"] = "1"  # for this process and those that it starts
    return told


Json = Annotated[bool, typer.Option("--json", help="Print a machine-readable result on stdout.")]
Seed = Annotated[int, typer.Option(help="Decides weights, order and augmentation.")]
Out = Annotated[Path, typer.Option(help="Folder that holds all runs.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", help="Change a setting: plan.epochs=5, head.beta=K, tally.on=val.")
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, mps; chosen automatically if left out.")]
Labels = Annotated[str | None, typer.Option(help="File with the labels, if another: FILE.npz:ARRAY or FILE.npy.")]
Kind = Annotated[str | None, typer.Option("--as", help="What an array is whose name does not say: probs, logits, ...")]
Offline = Annotated[bool, typer.Option("--offline", callback=_stay_offline, help="Never use the network.")]
Track = Annotated[
    list[str] | None,
    typer.Option("--track", help="Tell others of each epoch: csv:FILE, tensorboard:DIR, mlflow:URI, wandb:PROJECT."),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress.")]


@app.command()
def train(
    task: Annotated[str, typer.Argument(help="See `balcal list tasks`.")] = "fashion",
    method: Annotated[str, typer.Argument(help="See `balcal list methods`; join with +.")] = "balcal",
    seed: Seed = 0,
    set_: Set = None,
    out: Out = Path("runs"),
    device: Device = None,
    bf16: Annotated[bool, typer.Option("--bf16", help="Mixed precision (for GPUs; slow on most CPUs).")] = False,
    compile: Annotated[bool, typer.Option("--compile", help="Compile the backbone with torch.compile.")] = False,
    save_every: Annotated[float, typer.Option(help="Seconds between saves in the middle of an epoch.")] = 300.0,
    track: Track = None,
    keep_epochs: Annotated[
        int | None, typer.Option(min=1, help="Keep the weights of every n-th epoch; the run stays the same.")
    ] = None,
    offline: Offline = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Train a method on a task; resume it if it was interrupted; do nothing if it is finished."""
    from balcal import registry
    from balcal.sessions import train_recipe

    settings = [*(set_ or []), *(["plan.precision=bf16"] if bf16 else []), *(["plan.compile=true"] if compile else [])]
    recipe = registry.recipe(task, method, seed, settings)
    figures = train_recipe(recipe, out, device, quiet, save_every, track or (), keep_epochs)
    if figures is not None:
        print_figures(figures, json)


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="A run folder, as printed by `balcal train`.")],
    method: Annotated[str | None, typer.Option("--with", help="A post-hoc method to add, for example ts.")] = None,
    shift: Annotated[bool, typer.Option("--shift", help="Also on corrupted test images, five severities.")] = False,
    corruptions: Annotated[str, typer.Option(help="Which ones, joined by commas; else those of the data set.")] = "",
    published: Annotated[bool, typer.Option("--published", help="Published files such as CIFAR-10-C.")] = False,
    ood: Annotated[bool, typer.Option("--ood", help="Also against images from other data sets.")] = False,
    against: Annotated[str, typer.Option(help="Which ones, joined by commas; else the data set's partners.")] = "",
    human: Annotated[bool, typer.Option("--human", help="Also against what people saw (CIFAR-10H).")] = False,
    device: Device = None,
    offline: Offline = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Figures of a trained run on its test split, and beyond it."""
    from balcal import registry
    from balcal.beyond.evaluation import Asked, evaluate_beyond
    from balcal.beyond.words import in_words
    from balcal.devices import pick_device
    from balcal.evaluate import evaluate as evaluate_run
    from balcal.runs import Run

    found, place = Run.at(run), pick_device(device)
    asked = found.recipe.method + registry.method(method) if method else found.recipe.method
    figures = evaluate_run(found, asked, place)
    beyond = Asked(shift or bool(corruptions) or published, ood or bool(against), human, published)
    beyond = beyond.naming(corruptions, against)
    told = evaluate_beyond(found, asked, place, beyond, quiet)
    print_figures(figures | told, json)
    if told and not json:
        say(f"\n{in_words(told)}")


@app.command()
def arena(
    task: Annotated[str, typer.Argument(help="See `balcal list tasks`.")] = "fashion",
    methods: Annotated[
        str, typer.Option(help="Joined by commas; each is judged with and without ts.")
    ] = "vanilla,balcal",
    seeds: Annotated[int, typer.Option(min=1, help="How many, from 0 on.")] = 3,
    set_: Set = None,
    search: Annotated[
        list[str] | None,
        typer.Option(help="Choose a setting on the validation split: head.delta=0.91,0.93,0.95. May be repeated."),
    ] = None,
    against: Annotated[str | None, typer.Option(help="Compare with this entry; vanilla+ts if left out.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time. They do not change the numbers.")] = 1,
    threads: Annotated[int, typer.Option(min=1, help="Of each run. They do change the last bits.")] = 1,
    backend: Annotated[str, typer.Option(help="processes, or dask with --scheduler.")] = "processes",
    scheduler: Annotated[
        str | None, typer.Option(help="Dask scheduler, tcp://HOST:8786; its cluster can run code here.")
    ] = None,
    patience: Annotated[
        float, typer.Option(help="Seconds without a sign of life until a worker is given up.")
    ] = 1800.0,
    format: Annotated[
        str | None, typer.Option(help="markdown, latex, csv, runs (csv, a line per run) or json.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the table to this file: .md, .tex, .csv or .json.")] = None,
    runs: Annotated[Path, typer.Option(help="Folder that holds all runs.")] = Path("runs"),
    device: Device = None,
    offline: Offline = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Train methods in several seeds (or find them), judge and compare them in one table."""
    from balcal.arena import run
    from balcal.arena.tables import format_for
    from balcal.files import write_atomic

    if (backend == "dask") != (scheduler is not None) or backend not in ("processes", "dask"):
        raise typer.BadParameter("--backend dask goes with --scheduler ADDRESS; the other backend is processes")
    chosen = "json" if json else format_for(format, out)
    result = run(
        task,
        [name.strip() for name in methods.split(",") if name.strip()],
        seeds,
        settings=set_ or (),
        search=search or (),
        against=against,
        runs=runs,
        jobs=jobs,
        scheduler=scheduler,
        threads=threads,
        device=device,
        patience=patience,
        quiet=quiet,
    )
    told = result.table(chosen)
    if out:
        write_atomic(out, f"{told}\n".encode())
    say(told if json or not out else result.table("markdown"))
    for sentence in result.complaints:
        say(f"balcal: {plain(sentence)}", file=sys.stderr)
    if result.complaints:
        raise typer.Exit(1)


@app.command()
def calibrate(
    source: Annotated[str, typer.Argument(help="A run folder; or FILE.npz with held-out predictions to fit on.")],
    method: Annotated[str, typer.Option("--with", help="ts, vs, ms, dirichlet, ets, isotonic, histogram, gamma, ...")],
    apply: Annotated[str | None, typer.Option(help="FILE.npz to calibrate, when SOURCE is a file.")] = None,
    labels: Labels = None,
    kind: Kind = None,
    out: Annotated[Path | None, typer.Option(help="Write the calibrated probabilities to this .npz.")] = None,
    device: Device = None,
    json: Json = False,
) -> None:
    """Fit a post-hoc method on held-out predictions, and show what it changes on others."""
    from balcal import registry
    from balcal.devices import pick_device
    from balcal.evaluate import evaluate as evaluate_run
    from balcal.runs import Run

    if Path(source).is_dir():
        if apply or out:
            raise typer.BadParameter("--apply and --out go with a file; a run has its own test split")
        found = Run.at(Path(source))
        print_figures(evaluate_run(found, found.recipe.method + registry.method(method), pick_device(device)), json)
        return
    from balcal.offline import calibrate_arrays

    told = calibrate_arrays(source, method, apply, labels, kind, out)
    say(_json.dumps(told.as_dict(), indent=2) if json else told)


@app.command()
def report(
    source: Annotated[str, typer.Argument(help="A run folder, an arena's FILE.json, or FILE.npz with predictions.")],
    out: Annotated[
        Path | None, typer.Option(help="Where to write it, FILE.html; beside the source if left out.")
    ] = None,
    method: Annotated[
        str, typer.Option("--with", help="The post-hoc method to show beside the run as trained.")
    ] = "ts",
    offline: Offline = False,
    json: Json = False,
) -> None:
    """One HTML page about a run or an arena, for people: it needs no other file and no network."""
    from balcal.report import write_report

    told = write_report(source, out, method)
    say(_json.dumps(told, indent=2) if json else f"report: {told['report']} ({told['bytes'] / 1000:,.0f} kB)")


@app.command()
def retrofit(
    run: Annotated[Path, typer.Argument(help="A finished run folder.")],
    method: Annotated[str, typer.Option("--with", help="What to give it; see `balcal list methods`.")] = "balcal-auto",
    set_: Set = None,
    device: Device = None,
    offline: Offline = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Keep a run's network as it is and train only what stands on it: a new run beside the old one, in seconds."""
    from balcal.retrofitting import retrofit_run

    figures = retrofit_run(run, method, set_ or [], device, quiet)
    if figures is not None:
        print_figures(figures, json)


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    to: Annotated[str, typer.Option(help="onnx, torch-export or state")] = "onnx",
    out: Annotated[Path | None, typer.Option(help="The file to write; in the run's folder if left out.")] = None,
    method: Annotated[
        str | None, typer.Option("--with", help="A post-hoc method to put inside, for example ts.")
    ] = None,
    most: Annotated[int | None, typer.Option(help="Verify on so many test images; all if left out.")] = None,
    offline: Offline = False,
    json: Json = False,
) -> None:
    """One file that takes raw pixels and says calibrated probabilities; verified, with a card of what it claims."""
    from balcal.shipping.card import in_markdown
    from balcal.shipping.exporting import export_run

    card = export_run(run, to, out, method, most)
    say(_json.dumps(card, indent=2) if json else f"{in_markdown(card)}\nfile: {card['file']}")


@app.command()
def data(
    name: Annotated[str | None, typer.Argument(help="A task or a data set; all of them if left out.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write a contact sheet to this .png.")] = None,
    offline: Offline = False,
    json: Json = False,
) -> None:
    """What there is of a data set, fetched if need be: its files, how a task divides it, what it looks like."""
    from balcal.inventory import in_words, stock_list, take_stock

    told = take_stock(name, out) if name else stock_list()
    say(_json.dumps(told, indent=2, ensure_ascii=False) if json else in_words(told))


@app.command()
def audit(
    predictions: Annotated[str, typer.Argument(help="FILE.npz (probs, log_probs or logits, and labels), or a run.")],
    labels: Labels = None,
    kind: Kind = None,
    json: Json = False,
) -> None:
    """ECE as Guo et al., torchmetrics, netcal and the paper's code compute it, and why they differ."""
    from balcal.metrics.audit import SAME
    from balcal.metrics.audit import audit as audit_arrays
    from balcal.offline import read_source

    told = audit_arrays(**read_source(predictions, labels, kind).named())
    if json:
        say(_json.dumps(told.as_dict(), indent=2))
        return
    print_table(
        ["convention", "ECE %", "differs", "why"],
        [
            [f.name, f"{f.value * 100:.3f}", f"{f.difference * 100:+.3f}" if abs(f.difference) >= SAME else "", f.why]
            for f in told.findings
        ],
        f"{told.samples:,} samples, {told.classes} classes",
    )
    say(f"A perfect model with these confidences scores {told.floor_mean:.2%} on average, up to {told.floor_high:.2%}.")


@app.command()
def check(run: Annotated[Path, typer.Argument(help="A run folder.")], json: Json = False) -> None:
    """Hold recipe, data, checkpoints, predictions and figures of a run against each other, by their digests."""
    from balcal.checking import check_run

    told = check_run(run)
    say(_json.dumps(told.as_dict(), indent=2) if json else told)
    if told.findings:
        raise typer.Exit(1)


@app.command(name="list")
def list_(
    kind: Annotated[str, typer.Argument(help="methods, tasks, datasets, backbones or metrics")] = "methods",
    json: Json = False,
) -> None:
    """What there is, by name."""
    print_list(kind, json)


@app.command()
def show(
    method: Annotated[str, typer.Argument(help="A method, or several joined by +; or a metric.")], json: Json = False
) -> None:
    """What a method changes, with its settings and its formula; or what a metric measures."""
    from balcal import registry

    metrics = registry.table("metrics")
    if method in metrics:
        show_metric(method, metrics[method], json)
    else:
        print_method(method, json)


@app.command()
def demo(out: Out = Path("runs"), seed: Seed = 0, device: Device = None) -> None:
    """Train vanilla, balcal and balcal-auto on the embedded images, compare them, draw a reliability diagram."""
    from balcal.demo import run_demo

    run_demo(out, seed, device)


@app.command()
def paper(
    items: Annotated[list[str] | None, typer.Argument(help="Tables and figures; a list of them if left out.")] = None,
    tier: Annotated[str, typer.Option(help="smoke (minutes), cpu (hours) or paper (GPUs).")] = "cpu",
    all_: Annotated[bool, typer.Option("--all", help="Every table and figure.")] = False,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many; as many as the tier has if left out.")] = None,
    out: Out = Path("runs"),
    to: Annotated[Path, typer.Option(help="Folder for tables and pictures.")] = Path("paper"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what it would take.")] = False,
    found: Annotated[bool, typer.Option("--found", help="Train nothing; what is missing stays empty.")] = False,
    jobs: Annotated[int, typer.Option(help="How many runs at once, one thread each.")] = 1,
    scheduler: Annotated[
        str | None, typer.Option(help="Address of a Dask cluster to use instead; it can run code here.")
    ] = None,
    device: Device = None,
    offline: Offline = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Tables and figures of the paper: train what is missing, and put ours beside theirs."""
    from balcal.paper import ITEMS, item
    from balcal.paper.running import Workshop
    from balcal.paper.verb import Asked, list_items

    if not items and not all_:
        listed = list_items()
        if json:
            say(_json.dumps(listed, indent=2, ensure_ascii=False))
        else:
            print_table(["item", "kind", "title"], [[i["item"], i["kind"], i["title"]] for i in listed])
        return
    shop = Workshop(out, device, jobs, scheduler, quiet)
    asked = Asked([item(name) for name in (ITEMS if all_ else items or [])], tier, seeds, shop, found)
    told = asked.estimate() if dry_run else asked.answer(to)
    say(_json.dumps(told, indent=2, ensure_ascii=False) if json else asked.in_words(told))


def _say(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: Any = None
) -> None:
    """A warning is a sentence too, on stderr; those of other people's libraries say where they come from."""
    ours = Path(filename).is_relative_to(Path(__file__).parent)
    told = f"balcal: {message}" if ours else f"{filename}:{lineno}: {category.__name__}: {message}"
    print(plain(told), file=sys.stderr)


def main(run: Callable[[], Any] = app) -> None:
    """Errors that the user can mend are one sentence; anything else is ours, and keeps its traceback."""
    warnings.showwarning = _say
    try:
        run()
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        from balcal.core import BalcalError

        if not isinstance(error, BalcalError):
            raise
        say(f"balcal: {plain(error)}", file=sys.stderr)
        sys.exit(getattr(error, "exit_code", 1))

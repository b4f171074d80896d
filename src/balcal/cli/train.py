"""Verbs that train: `train`, `arena`, `retrofit`, `paper`, `demo`."""

from __future__ import annotations

import json as _json
import sys
from pathlib import Path
from typing import Annotated

import typer

from balcal.cli.options import Device, Json, Offline, Out, Quiet, Seed, Set, Track, app, names_of
from balcal.cli.text import print_figures, print_table, say
from balcal.runtime.names import plain


@app.command()
def train(
    task: Annotated[str, typer.Argument(help="See `balcal list tasks`.", autocompletion=names_of("tasks"))] = "fashion",
    method: Annotated[
        str, typer.Argument(help="See `balcal list methods`; join with +.", autocompletion=names_of("methods"))
    ] = "balcal-auto",
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
    from balcal.data.own_images import encoder_hint
    from balcal.training.fit import train_recipe
    from balcal.training.own_data import without_effect

    settings = [*(set_ or []), *(["plan.precision=bf16"] if bf16 else []), *(["plan.compile=true"] if compile else [])]
    recipe = registry.recipe(task, method, seed, settings)
    plan = [text.partition("=")[0].removeprefix("plan.") for text in recipe.overrides if text.startswith("plan.")]
    if idle := without_effect(recipe.task.plan, plan):
        say(f"balcal: {idle}", file=sys.stderr)
    if not quiet and (hint := encoder_hint(recipe.task)):
        say(f"balcal: {plain(hint)}", file=sys.stderr)
    figures = train_recipe(recipe, out, device, quiet, save_every, track or (), keep_epochs)
    if figures is not None:
        print_figures(figures, json)


@app.command()
def arena(
    task: Annotated[str, typer.Argument(help="See `balcal list tasks`.")] = "fashion",
    methods: Annotated[
        str, typer.Option(help="Joined by commas; each is evaluated with and without ts.")
    ] = "vanilla,balcal",
    seeds: Annotated[int, typer.Option(min=1, help="How many, from 0 on.")] = 5,
    set_: Set = None,
    search: Annotated[
        list[str] | None,
        typer.Option(help="Choose a setting on the validation split: head.delta=0.91,0.93,0.95. May be repeated."),
    ] = None,
    against: Annotated[str | None, typer.Option(help="Compare with this entry; vanilla+ts if left out.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time. Does not change the numbers.")] = 1,
    threads: Annotated[int, typer.Option(min=1, help="Threads of each run. Changes the last bits.")] = 1,
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
    """Train methods in several seeds (or find them), evaluate them and compare them in one table."""
    from balcal.arena import run
    from balcal.arena.tables import format_for
    from balcal.runtime.files import write_atomic

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
    table = result.table(chosen)
    if out:
        write_atomic(out, f"{table}\n".encode())
    say(table if json or not out else result.table("markdown"))
    for sentence in result.complaints:
        say(f"balcal: {plain(sentence)}", file=sys.stderr)
    if result.complaints:
        raise typer.Exit(1)


@app.command()
def retrofit(
    run: Annotated[Path, typer.Argument(help="A finished run folder.")],
    method: Annotated[
        str, typer.Option("--with", help="The method of the new head; see `balcal list methods`.")
    ] = "balcal-auto",
    set_: Set = None,
    device: Device = None,
    offline: Offline = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Freeze a run's backbone and train only a new head: a new run beside the old one, in seconds."""
    from balcal.training.retrofit import retrofit_run

    figures = retrofit_run(run, method, set_ or [], device, quiet)
    if figures is not None:
        print_figures(figures, json)


@app.command()
def paper(
    items: Annotated[list[str] | None, typer.Argument(help="Tables and figures; a list of them if left out.")] = None,
    tier: Annotated[str, typer.Option(help="smoke (minutes), cpu (hours), fast (days) or paper (GPUs).")] = "cpu",
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
    """Tables and figures of the paper: train what is missing, and show our numbers beside the published ones."""
    from balcal.arena.schedule import Resources
    from balcal.cli.paper import PaperRequest, list_items
    from balcal.paper import ITEMS, item

    if not items and not all_:
        listed = list_items()
        if json:
            say(_json.dumps(listed, indent=2, ensure_ascii=False))
        else:
            print_table(["item", "kind", "title"], [[i["item"], i["kind"], i["title"]] for i in listed])
        return
    resources = Resources(out, device, jobs, scheduler, quiet)
    request = PaperRequest([item(name) for name in (ITEMS if all_ else items or [])], tier, seeds, resources, found)
    printed = request.estimate() if dry_run else request.answer(to)
    say(_json.dumps(printed.data, indent=2, ensure_ascii=False) if json else printed.text)


@app.command()
def demo(out: Out = Path("runs"), seed: Seed = 0, device: Device = None, json: Json = False) -> None:
    """Show over-confidence and what BalCAL does about it, on images in the package; two to three minutes."""
    from balcal.cli.demo import run_demo

    shown = run_demo(out, seed, device)
    say(_json.dumps(shown.as_dict(), indent=2) if json else shown.text())

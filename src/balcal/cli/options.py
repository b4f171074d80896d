"""The program `balcal` and the options that its verbs share. It imports nothing heavy, so `--help` is fast."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Classifiers whose confidence can be trusted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(asked: bool) -> None:
    if asked:
        from balcal import __version__

        print(f"balcal {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Classifiers whose confidence can be trusted."""


def names_of(kind: str) -> Callable[[str], list[str]]:
    """Complete a name of this kind at the tab key; what stands before a `+` stays."""

    def complete(incomplete: str) -> list[str]:
        from balcal import registry

        before, plus, last = incomplete.rpartition("+")
        return [f"{before}{plus}{name}" for name in registry.table(kind) if name.startswith(last)]

    return complete


def _stay_offline(offline: bool) -> bool:
    if offline:
        os.environ["BALCAL_OFFLINE"] = "1"  # for this process and those that it starts
    return offline


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
    typer.Option("--track", help="Send each epoch to a tracker: csv:FILE, tensorboard:DIR, mlflow:URI, wandb:PROJECT."),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress.")]

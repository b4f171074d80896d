"""Run processes that use one folder at once, interleaved at their file operations in an order that a seed decides.

Before each file operation below the folder a process asks for permission and waits. A random one of the waiting
processes goes on until its next operation. So the schedule depends on the seed alone, not on the machine.
"""

import builtins
import errno
import io
import multiprocessing
import os
import random
import traceback
from pathlib import Path

PATIENCE = 120.0
"""seconds to wait for a process that is computing: far more than it takes"""
OPERATIONS = ("replace", "rename", "unlink", "remove", "mkdir", "rmdir", "open")


def interleaved(actors, root, seed, locks=True):
    """Run `actors`, (function, *arguments) each, in a process each; returns how they ended, in the same order.

    An end is ("done", its result), ("refused", the error message) or ("broken", a traceback). Without `locks` the file
    system has none, so that the processes do not see each other. All have the same process id.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["two_actors", "balcal.training.fit", "balcal.deploy.export", "sklearn.datasets"])
    rng, ends = random.Random(seed), [None] * len(actors)
    pipes, processes = [], []
    for actor in actors:
        mine, theirs = context.Pipe()
        process = context.Process(target=act, args=(theirs, str(root), locks, actor))
        process.start()
        theirs.close()
        pipes.append(mine)
        processes.append(process)
    waiting = {number for number in range(len(actors)) if heard(pipes[number], number, ends)}
    while waiting:
        number = rng.choice(sorted(waiting))
        for _ in range(rng.choice((1, 1, 2, 5, 20))):
            pipes[number].send("go")
            if not heard(pipes[number], number, ends):
                waiting.discard(number)
                break
    for process in processes:
        process.join(PATIENCE)
    return ends


def heard(pipe, number, ends):
    """Whether the process asks for permission; if not, it has ended, and its message says how."""
    assert pipe.poll(PATIENCE), "a process hangs"
    message = pipe.recv()
    if message != "may I":
        ends[number] = message
    return message == "may I"


def act(pipe, root, locks, actor):
    """The main function of an actor's process."""
    import fcntl

    import torch

    from balcal.core import BalcalError

    torch.set_num_threads(1)
    os.getpid = lambda: 4242
    if not locks:
        fcntl.flock = no_locks
    ask_before_file_operations(pipe, root)
    work, *arguments = actor
    try:
        end = "done", work(*arguments)
    except BalcalError as error:
        end = "refused", str(error)
    except BaseException:
        end = "broken", traceback.format_exc()
    pipe.send(end)


def no_locks(*arguments):
    raise OSError(errno.ENOLCK, "No locks available")


def ask_before_file_operations(pipe, root):
    def asked(real):
        def operation(path, *arguments, **more):
            if isinstance(path, str | os.PathLike) and Path(path).absolute().is_relative_to(root):
                pipe.send("may I")
                pipe.recv()
            return real(path, *arguments, **more)

        return operation

    for name in OPERATIONS:
        setattr(os, name, asked(getattr(os, name)))
    builtins.open = io.open = asked(builtins.open)


def train(root, settings, keep_epochs=None):
    from balcal.registry import recipe
    from balcal.training.fit import train_recipe

    asked = recipe("digits", "balcal", 0, settings)
    return train_recipe(asked, root, "cpu", quiet=True, keep_epochs=keep_epochs)["metrics"]


def evaluate(run):
    import torch

    from balcal.evaluation.judge import evaluate as evaluate_run
    from balcal.runs import Run

    found = Run.at(Path(run))
    return evaluate_run(found, found.recipe.method, torch.device("cpu"))["metrics"]


def export(run, out):
    from balcal.deploy.export import export_run

    return export_run(run, "state", out, most=20)["calibration"]["nll"]

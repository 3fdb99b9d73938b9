"""The keys of every command's JSON object, in order, with what they hold. docs/command-line.md shows the same
tables (a test compares them). A key is never taken away and never changes its meaning; new ones may come."""

from __future__ import annotations

_CHANGE = {
    "line": "path of the line",
    "sequence": "number of the ledger entry that this command wrote",
    "time": "UTC time of that entry, ISO 8601",
    "task": "the task that was acted on",
    "members": "list of {task, weight, digest, source, private, descends, examples} after it, in order of arrival",
    "version": "root digest of the model that is deployed now",
    "model": "folder of that model",
    "accounting": "class of every tensor of the checkpoint: {merged, frozen, private, buffer, tied, "
    "nonfinite (elements), distance}; null where no checkpoint was read",
    "counts": "what the merge read, computed and wrote",
    "notes": "list of remarks on the checkpoint",
    "receipt": "what was removed or changed, and how; null for merge",
    "seconds": "how long it took",
}

SCHEMA: dict[str, dict[str, str]] = {
    "version": {"version": "the version of plait"},
    "init": {
        "line": "path of the line",
        "method": "name of the method",
        "options": "all options of the method, defaults included",
        "retention": "vectors, statistics or none",
        "descent": "what an expert must have been trained from: any, or last, the line's last model",
        "private": "list of patterns of private tensors",
        "seed": "seed of the line",
        "data": "what a merge needs of a task: none, unlabelled, labelled new or labelled all",
        "version": "root digest of the base, which is deployed until the first merge",
        "model": "folder of that model",
        "notes": "list of remarks on the options",
    },
    "merge": {
        **_CHANGE,
        "points": "list of {t, path}: points of the path that were written; null where none were asked for",
    },
    "unmerge": _CHANGE,
    "reweight": _CHANGE,
    "replace": _CHANGE,
    "status": {
        "line": "path of the line",
        "base": "{name, digest} of the base",
        "method": "name of the method",
        "options": "all options of the method",
        "removal": "how a member would be taken out: subtract, refold, recompute or never",
        "retention": "vectors, statistics or none",
        "descent": "what an expert must have been trained from: any, or last, the line's last model",
        "private": "list of patterns of private tensors",
        "seed": "seed of the line",
        "events": "number of ledger entries",
        "changed": "UTC time of the newest entry",
        "note": "what must be known of the deployed model, such as that it is not exact; null for nothing",
        "data": "what a merge needs of a task: none, unlabelled, labelled new or labelled all",
        "members": "list of {task, weight, digest, source, private, descends, examples} in order of arrival; "
        "examples: null, or by split {count, of, digest} of those that were used",
        "version": "root digest of the model that is deployed",
        "model": "folder of that model",
        "versions": "list of digests of the versions on disk",
        "bytes": "{members, state, data}: what members, state and stored data take on disk",
        "state_bytes": "what the state takes once all tensors have changed, by their shapes; null if unknown",
    },
    "log": {
        "line": "path of the line",
        "entries": "list of events, oldest first: {sequence, time, verb, task, members, version, accounting, "
        "counts, notes, receipt, seconds}",
    },
    "show": {
        "line": "path of the line",
        "kind": "entry or member",
        "found": "all that is recorded of it",
    },
    "diff": {
        "line": "path of the line",
        "a": "root digest of the first version",
        "b": "root digest of the second version",
        "equal": "true where both have the same bytes",
        "members": "{only_a, only_b, weight, checkpoint}: tasks that are in one only, or differ",
        "tensors": "{same, differ, only_a, only_b}: number of equal tensors, names of the others",
    },
    "export": {
        "line": "path of the line",
        "out": "where the checkpoint was written",
        "version": "root digest of the version that was exported",
        "task": "the task whose private tensors were added, or null",
        "batchnorm": "null, or {tensors (names), split, tasks (by name {count, of, digest} of the examples), digest, "
        "software}: running statistics that were computed anew, and the root digest of the model with them",
        "files": "list of the files in it",
        "sequence": "number of the ledger entry that records the export",
    },
    "eval": {
        "line": "path of the line",
        "split": "which examples: train, calibration, validation or test",
        "tasks": "list of {name, kind, member, split, metric, data, head, network}: the tasks and how they were "
        "measured",
        "members": "list of the tasks that are members now",
        "rows": "list of {digest, role (base, version, expert), member, own, task, split, metric, data, head, "
        "network, value, right, count, low, high, level, seed, device, time, software, bits, groups, undefined}: see "
        "docs/evaluation.md",
        "matrix": "{tasks, steps, values, low, high, base, experts, arrival}: values[k][i] is the accuracy on task i "
        "after step k, null where it was not measured",
        "figures": "{tasks, acc, weighted, normalised, base, experts, backward, backward_over_t, forgetting, "
        "plasticity_gap} over the members of now, shares from 0 to 1",
        "removals": "list of {sequence, task, retain, fidelity, forget, bytes_equal}, one for every unmerge",
        "computed": "number of rows that were measured by this command",
        "reused": "number of rows that were known before",
        "skipped": "list of {role, digest, member, task, why}: what could not be measured",
        "lost": "list of the members whose expert or version of arrival was not measured and cannot be had any more",
        "notes": "list of remarks",
        "seconds": "how long it took",
    },
    "report": {
        "line": "path of the line",
        "out": "where the page was written, or null",
        "bytes": "size of the page, or null",
        "facts": "all that the page tells: {schema, plait, line, deployed, members, ledger, evaluation, vectors, "
        "removals, paths, purged, gaps}; see docs/report.md",
    },
    "verify": {
        "line": "path of the line",
        "ok": "true where no problem was found and a replay, if asked for, was equal",
        "problems": "list of problems, one line each",
        "checked": "what was read and hashed: kind -> number",
        "replay": "`equal`, `different`, `not comparable: ` and why, or null without --replay",
        "version": "root digest of the model that is deployed",
    },
    "gc": {
        "line": "path of the line",
        "dry_run": "true where nothing was deleted",
        "removed": "what was deleted, or would be: kind -> list",
        "bytes": "bytes freed, or that would be",
    },
    "purge": {
        "line": "path of the line",
        "task": "the task whose remains were deleted",
        "sequence": "number of the ledger entry that records it",
        "removed": "what was deleted: {objects, versions}, lists of digests",
        "bytes": "bytes freed",
        "exports": "list of {sequence, time, version, out}: recorded exports that still hold the task",
    },
    "methods": {
        "methods": "list of {name, summary, family, removal, data, order, memory, cost, paper, options, "
        "by_tensor (options that may be another for each tensor), description, problem}",
    },
    "once": {
        "recipe": "path of the recipe",
        "out": "where the checkpoint was written",
        "base": "the base that was used",
        "method": "name of the method",
        "options": "all options of the method, defaults included",
        "seed": "seed of the random numbers of sparsifiers",
        "members": "list of {checkpoint, task, weight, private, nonfinite (elements)}",
        "dtype": "dtype of the output (F32, BF16, F16), or null where it is the base's",
        "version": "root digest of what was written",
        "counts": "what the merge read, computed and wrote",
        "accounting": "class of every tensor of all checkpoints: {merged, private, buffer, tied, "
        "nonfinite (elements)}",
        "notes": "list of remarks: how the recipe was read, and on the checkpoints",
        "seconds": "how long it took",
    },
    "finetune": {
        "out": "folder of the expert",
        "task": "name of the task",
        "kind": "kind of the task",
        "classes": "list of the names of its classes",
        "head": "{kind, templates, scale, weight, bias}: its head, which was frozen unless it is `model`",
        "base": "{name, digest} of the base",
        "start": "{digest, tasks}: root digest of what training started from, and the tasks whose influence it holds",
        "recipe": "{epochs, rate, batch, warmup, examples, seed, weight_decay, train, freeze}",
        "data": "{split, digest, count, of}: digest of the examples, how many were seen, and of how many",
        "network": "python:module:function, or null where config.json describes the network",
        "device": "cpu or cuda",
        "threads": "threads of torch",
        "software": "versions of what had a hand in the bytes",
        "steps": "number of steps",
        "trained": "{tensors, elements}: how much was trained",
        "loss": "{every, values}: means of the loss over `every` steps at a time",
        "digest": "root digest of the expert",
        "seconds": "how long it took",
    },
    "bench": {
        "action": "run, removal, cil, table or list",
        "suites": "list of {name, summary, base, tasks}: all suites, for list; else null",
        "file": "path of the file of results, or null",
        "rows": "list of {method, seeds, option, chosen, edge, order, figures, cpu, seconds, kept, memory}, best "
        "first: see docs/benchmarks-suites.md; of removals {method, how, seeds, places, equal, figures, cpu, "
        "seconds, kept}: see docs/removal.md; of cil {dataset, groups, method, seeds, option, chosen, edge, figures, "
        "training, merging, models, samples}: see docs/benchmarks-suites.md; or null",
        "results": "all that the file of results holds, or null",
    },
}

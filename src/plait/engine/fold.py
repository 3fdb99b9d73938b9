"""A merge: members are folded into a state, the state into the merged model. The engine's main entry."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from plait.engine.call import Identities, Merge, check, fingerprint
from plait.engine.coefficients import weigh
from plait.engine.drive import Driver, holds
from plait.engine.journal import Journal, Sums
from plait.engine.move import CopyPass
from plait.engine.passes import (
    ExaminePass,
    FoldPass,
    GivePass,
    SurveyPass,
    TallyPass,
    collect,
    in_lockstep,
    wanted,
)
from plait.engine.plan import Job, Settings, by_piece, whole
from plait.engine.progress import Gauge
from plait.engine.source import Incoming
from plait.engine.state import Record, StateReader, StateWriter, settle
from plait.errors import VerificationError
from plait.methods.base import LONG, Answers, Known, MemberFacts, Outlook, Survey, TensorMethod, Where
from plait.methods.coefficients import STATELESS, Coefficients
from plait.methods.varied import weighted
from plait.types import TensorRef

EVERYTHING = Survey()

TOGETHER = 4
"""Members that are surveyed side by side: they share a read of the base, and their answers lie in memory at once."""

Made = tuple[Where, Record | None]


@dataclass(frozen=True)
class Folded:
    """What a merge found and did.

    known: by task, what `prepare` found about the members that entered. concluded: what `conclude` found.
    counts: tensors "merged" and "copied" (nobody changes them, or the method gives the only member back).
    seconds: wall time. overflowed: elements of the output that are infinite or NaN although the base is
    finite there (what members hold that is not finite is never used), by tensor, where there are any: the
    values are too large for the output's dtype. sums: of the new state's files, which tell them again;
    without a journal they are not complete.
    """

    known: dict[str, Known]
    concluded: Known
    counts: dict[str, int]
    seconds: float
    bytes_read: int
    bytes_written: int
    overflowed: dict[str, int] = field(default_factory=dict)
    sums: Sums = field(default_factory=dict)


def fold(
    method: TensorMethod,
    base: Mapping[str, TensorRef],
    members: Sequence[Incoming],
    *,
    enter: Sequence[Incoming],
    leave: Sequence[Incoming] = (),
    state: Path | None,
    new_state: Path | None,
    out: Mapping[str, TensorRef],
    settings: Settings,
    progress: Gauge | None = None,
    journal: Path | None = None,
    base_identity: str = "",
    state_identity: str = "",
    alpha: Coefficients | None = None,
    coefficients: Coefficients | None = None,
) -> Folded:
    """Merge: `leave` out of the state, `enter` into it in order, and the state into the output.

    members: the list after the operation, in order; the files of those that do not enter are not read, but
    those of the only member that is left by a method that gives that one back. state: the folder of the state
    before, None to begin from nothing. new_state: the folder for the state after, made here, None to keep
    none. out: places for tensors of `base`, each in any float dtype; tensors left out are not made.

    journal: a file that lets the same call go on where an interrupted one stopped, to the end of the last pass:
    of a call that had ended, nothing but checksums is computed again. The caller deletes it.
    base_identity, state_identity: digests of base and state, and `Incoming.identity` of a member; where
    given, the call is the same even if these files were moved or written again meanwhile.

    A method that keeps no state (`STATELESS`) takes all members in at every call. One of family coefficients finds
    what inner products it can in `state` and leaves all in `new_state`. alpha: what a fit has chosen, by group and
    member. coefficients: of the task vectors, by group and member; no other is computed then, and no `new_state`.

    The bytes written depend on base, method, members and their order alone. Errors: NonFinite names tensor
    and index; FormatError and PlaitError where files fail; VerificationError where the last member leaves and
    sums are not 0.
    """
    start = time.monotonic()
    method = weighted(method, (m.weight for m in (*members, *enter, *leave)))
    check(method, base, members, enter, leave, out)
    driver = Driver(settings, progress)
    merge = Merge(method, base, members, enter, leave, out, driver, alpha=alpha, coefficients=coefficients)
    if journal is not None:
        identities = Identities(base_identity, state_identity)
        driver.journal = Journal(journal, fingerprint(merge, identities, state, new_state))
    try:
        merged = _fold(merge, state, new_state)
    finally:
        if driver.journal is not None:
            driver.journal.close()
    copied = sum(1 for name in base if name not in merged)
    counts = {"merged": len(merged), "copied": copied}
    return Folded(
        merge.known,
        merge.concluded,
        counts,
        time.monotonic() - start,
        driver.traffic.read,
        driver.traffic.written,
        merge.overflowed,
        merge.sums,
    )


def _fold(merge: Merge, state: Path | None, new_state: Path | None) -> set[str]:
    """Run the passes; returns the names of the tensors that were computed, not copied."""
    if merge.method.facts.family in STATELESS:
        weigh(merge, state, new_state)
        state = new_state = None
    merge.enter = [
        _with(m, known) for m, known in zip(merge.enter, _prepare(merge, merge.enter, "prepare"), strict=True)
    ]
    merge.leave = [
        _with(m, known) for m, known in zip(merge.leave, _prepare(merge, merge.leave, "leave"), strict=True)
    ]
    # What is known of a member does not depend on its weight, so only now is left out where that is 0.
    merge.enter, merge.leave = ([m.present() for m in group] for group in (merge.enter, merge.leave))
    # Coefficients are known of all members together, and nothing of one of them.
    weighed = merge.method.facts.family == "coefficients"
    merge.known = {m.task: {} if weighed else m.known or {} for m in merge.enter}
    facts = merge.facts()
    reader = StateReader(state, merge.method) if state is not None else None
    touched = set(reader.names) if reader is not None else set()
    for member in (*merge.enter, *merge.leave):
        touched |= member.touched
    only = len(facts) == 1 and merge.method.reduces(facts)
    computes = bool(merge.out) and bool(facts) and not only
    concludes = computes and merge.method.concludes()
    if (
        concludes
        and new_state is None
        and reader is None
        and not merge.leave
        and _tallied(merge, touched, facts)
    ):
        concludes = False

    with _folder_for_state(merge, new_state, needed=concludes) as folder:
        alive = touched
        outlook = Outlook(facts, merge.concluded) if computes and not concludes else None
        if folder is not None or outlook is not None:
            alive = _state_pass(merge, touched, reader, folder, outlook, keep=new_state is not None)
        if not facts and alive and folder is not None:
            raise VerificationError(
                f"the last member left, but sums of {len(alive)} tensors are not 0, {min(alive)} among them; "
                "the checkpoint handed in is not the one that was merged: give that one"
            )
        if concludes and folder is not None:
            after = StateReader(folder, merge.method)
            merge.concluded = _conclude(merge, after, facts)
            final = FoldPass(
                merge.method, merge.source, (), (), after, None, merge.out, Outlook(facts, merge.concluded)
            )
            total = sum(
                after.bytes_of(n) + merge.base[n].nbytes + merge.out[n].nbytes for n in alive & set(merge.out)
            )
            _write(merge, "merge", merge.plan(alive & set(merge.out)), final, total)
    computed = alive if computes else set()
    # Tensors of a state that vanished in the one pass were written by it, with the same bytes as a copy.
    written = touched if computes and not concludes else computed
    if only:
        written = _give(merge, alive & set(reader.names) if reader is not None else set())
    rest = [name for name in sorted(merge.out) if name not in written]
    copies = CopyPass(tuple((merge.base[name], merge.out[name]) for name in rest))
    plan = copies.plan()
    found = merge.driver.write("copy", plan, copies, copies.total)
    merge.lost((rest[int(piece.name)], count) for piece, count in by_piece(plan, found))
    return computed


def _write(
    merge: Merge, label: str, plan: Sequence[Job], task: FoldPass, total: int, settled: Path | None = None
) -> list[Made]:
    """Run a pass that writes the output or a state; what was made of every piece, in the order of the
    plan."""
    made: list[Made] = []
    for piece, (record, count) in by_piece(plan, merge.driver.write(label, plan, task, total, settled)):
        made.append((piece, record))
        merge.lost([(piece.name, count)])
    return made


def _state_pass(
    merge: Merge,
    touched: set[str],
    reader: StateReader | None,
    folder: Path | None,
    outlook: Outlook | None,
    *,
    keep: bool,
) -> set[str]:
    """Members into the state, and with an outlook the state into the output. Returns the tensors with a
    state."""
    journal = merge.driver.journal
    wholes = [whole(merge.base[name], name) for name in touched]
    writer = None
    plan = merge.plan(touched)
    settled = _settled(merge, folder)
    if settled is not None and outlook is None:
        return settled
    if folder is not None and settled is None:
        writer = StateWriter(folder, merge.method, wholes, _spilled(merge))
    task = FoldPass(
        merge.method,
        merge.source,
        tuple(merge.enter),
        tuple(merge.leave),
        reader,
        writer,
        merge.out,
        outlook,
        merge.compiled,
    )
    total = sum(
        merge.base[n].nbytes + (merge.out[n].nbytes if outlook and n in merge.out else 0) for n in touched
    )
    total += sum(m.nbytes for m in (*merge.enter, *merge.leave))
    total += (reader.nbytes if reader else 0) + (writer.nbytes if writer else 0)
    made = _write(merge, "fold", plan, task, total, folder if settled is not None else None)
    if settled is not None:
        return settled
    if folder is None or writer is None:
        return touched
    sync = keep or journal is not None
    wrote = journal.wrote("fold") if journal is not None else []
    alive, merge.sums = writer.finish(((p, r) for p, r in made if r is not None), wrote, sync=sync)
    if journal is not None:
        journal.value("folded", {"names": sorted(alive), "sums": merge.sums})
    settle(folder, sync=sync)
    return alive


def _settled(merge: Merge, folder: Path | None) -> set[str] | None:
    """The tensors with a state, where an interrupted run had finished the state and its files are whole. Who
    called that run may have moved them to their own place already."""
    journal = merge.driver.journal
    if journal is None or folder is None or "folded" not in journal.values:
        return None
    noted = journal.values["folded"]
    workers = merge.settings.workers
    if not all(holds(folder / name, ranges, workers) for name, ranges in noted["sums"].items()):
        return None
    settle(folder, sync=True)
    merge.sums = noted["sums"]
    return set(noted["names"])


def _spilled(merge: Merge) -> int:
    """First free byte of the spill file that an interrupted run may have left."""
    ranges = merge.driver.journal.wrote("fold") if merge.driver.journal is not None else []
    return max((first + count for file, first, count, _ in ranges if Path(file).name == "spill"), default=0)


def _prepare(merge: Merge, members: Sequence[Incoming], key: str) -> list[Known]:
    """What the method's `prepare` knows of each member; members whose knowledge was handed in are not
    read."""
    missing = [n for n, m in enumerate(members) if m.known is None]
    found: dict[int, Known] = {}
    journal = merge.driver.journal
    if journal is not None and key in journal.values:
        found = {int(n): known for n, known in journal.values[key].items()}
    elif missing:
        round_ = 0

        def ask(surveys: dict[int, Survey]) -> dict[int, Answers]:
            nonlocal round_
            round_ += 1
            asked = {n: [w.name for w in _places(merge, members[n].refs, s)] for n, s in surveys.items()}
            names = {name for group in asked.values() for name in group}
            plan = merge.plan(names)
            task = SurveyPass(merge.method, merge.source, tuple(members), surveys, merge.compiled)
            total = sum(merge.base[n].nbytes for n in names) // min(s.stride for s in surveys.values())
            total += sum(
                members[n].refs[t].nbytes // surveys[n].stride for n, group in asked.items() for t in group
            )
            answers = merge.driver.survey(f"prepare {round_}", plan, task, total)
            return {n: _of_member(n, _places(merge, members[n].refs), plan, answers) for n in surveys}

        size = sum(ref.numel for ref in merge.base.values() if ref.mergeable)
        for group in (missing[i : i + TOGETHER] for i in range(0, len(missing), TOGETHER)):
            generators = {
                n: merge.method.prepare({w.name: w for w in _places(merge, members[n].refs)}, size)
                for n in group
            }
            found |= in_lockstep(generators, ask)
        if journal is not None:
            journal.value(key, {str(n): known for n, known in found.items()})
    return [found.get(n, m.known or {}) for n, m in enumerate(members)]


def _of_member(
    number: int,
    places: Sequence[Where],
    plan: Sequence[Job],
    answers: Sequence[Sequence[Sequence[tuple[int, int, Any]]]],
) -> Answers:
    mine = [[[(first, a) for n, first, a in piece if n == number] for piece in job] for job in answers]
    return collect(places, plan, mine)


def _places(merge: Merge, names: Mapping[str, Any] | set[str], survey: Survey = EVERYTHING) -> list[Where]:
    """Whole tensors in the order of their names, so that sharding does not matter; empty ones, and those that
    the survey does not ask for, are left out."""
    return [whole(merge.base[n], n) for n in sorted(names) if merge.base[n].numel and wanted(survey, n)]


def _tallied(merge: Merge, touched: set[str], facts: Sequence[MemberFacts]) -> bool:
    """Whether what the method concludes could be found by its shorter way, from the members themselves; it is in
    `merge.concluded` then."""
    journal, method = merge.driver.journal, merge.method
    if type(method).tally is TensorMethod.tally or not merge.compiled:
        return False
    if journal is not None and "folded" in journal.values:
        return False  # the interrupted run had gone the long way
    places = _places(merge, touched)

    def ask(surveys: dict[int, Survey]) -> dict[int, Answers]:
        names = {w.name for w in _places(merge, touched, surveys[0])}
        plan = merge.plan(names)
        task = TallyPass(method, merge.source, tuple(merge.enter), surveys[0])
        total = sum(merge.base[n].nbytes for n in names)
        total += sum(m.refs[n].nbytes for m in merge.enter for n in names if n in m.refs)
        found = merge.driver.survey("conclude", plan, task, total // surveys[0].stride)
        answers = collect(places, plan, found)
        if any(answer is LONG for entries in answers.values() for _, answer in entries):
            raise _Long
        return {0: answers}

    try:
        merge.concluded = in_lockstep({0: method.conclude({w.name: w for w in places}, facts)}, ask)[0]
    except _Long:
        return False
    return True


class _Long(Exception):
    """A shorter way does not hold for all chunks."""


def _conclude(merge: Merge, state: StateReader, facts: Sequence[MemberFacts]) -> Known:
    journal = merge.driver.journal
    if journal is not None and "conclude" in journal.values:
        known: Known = journal.values["conclude"]
        return known
    places = _places(merge, state.names)

    def ask(surveys: dict[int, Survey]) -> dict[int, Answers]:
        names = {w.name for w in _places(merge, state.names, surveys[0])}
        plan = merge.plan(names)
        task = ExaminePass(merge.method, state, surveys[0])
        total = sum(state.bytes_of(n) for n in names) // surveys[0].stride
        found = merge.driver.survey("conclude", plan, task, total)
        return {0: collect(places, plan, found)}

    known = in_lockstep({0: merge.method.conclude({w.name: w for w in places}, facts)}, ask)[0]
    if journal is not None:
        journal.value("conclude", known)
    return known


def _give(merge: Merge, held: set[str]) -> set[str]:
    """Write the only member's tensors where the method gives that one back. Returns their names. held: the
    tensors of the state before that still have one: that member has changed them."""
    member = merge.members[0]
    if not member.refs:
        member = next((m for m in merge.enter if m.task == member.task), member)
    if held and not member.refs:
        raise ValueError(
            f"{member.task} is the only member left and {merge.method.name} gives it back: hand in its refs"
        )
    names = {name for name, ref in member.refs.items() if ref.numel and name in merge.out}
    total = sum(merge.base[n].nbytes + member.refs[n].nbytes + merge.out[n].nbytes for n in names)
    plan = merge.plan(names)
    found = merge.driver.write("give", plan, GivePass(merge.source, member, merge.out), total)
    merge.lost((piece.name, count) for piece, count in by_piece(plan, found))
    return names


def _with(member: Incoming, known: Known) -> Incoming:
    return replace(member, known=known)


@contextmanager
def _folder_for_state(merge: Merge, new_state: Path | None, *, needed: bool) -> Iterator[Path | None]:
    """The folder of the new state; a temporary one beside the output where none is kept but the method
    concludes."""
    if new_state is not None:
        new_state.mkdir(parents=True, exist_ok=True)
        yield new_state
    elif not needed:
        yield None
    elif merge.driver.journal is not None:
        folder = merge.driver.journal.path.with_name(merge.driver.journal.path.name + ".state")
        folder.mkdir(exist_ok=True)
        yield folder
        shutil.rmtree(folder)
    else:
        beside = Path(next(iter(merge.out.values())).file).parent
        with tempfile.TemporaryDirectory(prefix=".plait-state-", dir=beside) as name:
            yield Path(name)

"""Where the bytes of a line are kept: objects, versions and a ledger, in one folder."""

from plait.store.audit import Removed, Report, gc, verify
from plait.store.ledger import Entry, Ledger
from plait.store.objects import Objects
from plait.store.reach import Needed, holding, needed
from plait.store.store import FORMAT, Store
from plait.store.versions import Versions

__all__ = [
    "FORMAT",
    "Entry",
    "Ledger",
    "Needed",
    "Objects",
    "Removed",
    "Report",
    "Store",
    "Versions",
    "gc",
    "holding",
    "needed",
    "verify",
]

"""Where the bytes of a line are kept: objects, versions and a ledger, in one folder."""

from plait.store.audit import Collected, Report, gc, tidy, verify
from plait.store.ledger import Entry, Ledger
from plait.store.objects import Objects
from plait.store.reach import Needed, kept, needed
from plait.store.store import FORMAT, Store
from plait.store.versions import Versions

__all__ = [
    "FORMAT",
    "Collected",
    "Entry",
    "Ledger",
    "Needed",
    "Objects",
    "Report",
    "Store",
    "Versions",
    "gc",
    "kept",
    "needed",
    "tidy",
    "verify",
]

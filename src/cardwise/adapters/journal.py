"""What the agent handed over, on disk: it survives crashes, and says what a restarted agent must restore or remove.

One row per container, keyed by its pod's UID; SQLite in WAL mode, synced at every write. Refuses to be the truth: the
cluster's allocation is that, and a row that contradicts it is written anew at the container's next start. So a damaged
file is put aside and a new one begun: what runs is entered again from the kubelet and the cluster.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from cardwise.core.allocation import Hold
from cardwise.core.card.handover import Grant
from cardwise.core.card.health_record import CardHealth, Code, Fence
from cardwise.core.card.xids import Action
from cardwise.errors import ClusterError, UserError

SCHEMA = """
CREATE TABLE IF NOT EXISTS handed (
  uid TEXT NOT NULL, container TEXT NOT NULL, namespace TEXT NOT NULL, pod TEXT NOT NULL,
  state TEXT NOT NULL, told BLOB NOT NULL, PRIMARY KEY (uid, container)
) WITHOUT ROWID
"""
SCHEMA_EVICTED = "CREATE TABLE IF NOT EXISTS evicted (uid TEXT PRIMARY KEY, told BLOB NOT NULL) WITHOUT ROWID"
"""Made with the first eviction. An agent from before there were any leaves it alone, so the version is the same."""
SCHEMA_FENCED = "CREATE TABLE IF NOT EXISTS fenced (uuid TEXT PRIMARY KEY, told BLOB NOT NULL) WITHOUT ROWID"
SCHEMA_CLEARING = "CREATE TABLE IF NOT EXISTS clearing (uuid TEXT PRIMARY KEY, by TEXT NOT NULL) WITHOUT ROWID"
"""Both made when they are needed, as the table of evictions is."""
_PUT_FENCED = "INSERT OR REPLACE INTO fenced (uuid, told) VALUES (?, ?)"
VERSION = 1
DAMAGED = ".damaged"
"""What a damaged file's name ends in, once it was put aside. There is one such at most: the last."""


LOCKED_WITHIN_S = 0.5
"""How long to wait for another program that has the file locked: the agent does nothing else meanwhile."""


class State(Enum):
    """How far a handover came."""

    PREPARING = "preparing"
    READY = "ready"


@dataclass(frozen=True, slots=True)
class Standing:
    """Who a pod is when memory must come back, from the cluster at its start: the API server may be away by then.

    priority: as Kubernetes has it. created_s: when the pod was made, in seconds since 1970, by the API server's clock.
    service: whose replica it is, empty for a pod of its own.
    """

    best_effort: bool
    priority: int = 0
    created_s: float = 0.0
    service: str = ""


@dataclass(frozen=True, slots=True)
class Eviction:
    """A pod that has to give its memory back: written before it is ended, kept until nobody needs to know any more.

    uuids: cards that it has to leave. at_s: in seconds since 1970, by this node's clock. deleted: the API server took
    the eviction, or has the pod no more; told: the event was written; how: what else was done, empty if nothing.
    """

    uid: str
    namespace: str
    pod: str
    service: str
    uuids: tuple[str, ...]
    why: str
    at_s: float
    deleted: bool = False
    told: bool = False
    how: str = ""

    @property
    def name(self) -> str:
        """Namespace and name of the pod."""
        return f"{self.namespace}/{self.pod}"


@dataclass(frozen=True, slots=True)
class Row:
    """A container and what it was given. holds: what the pod takes. standing: None in rows from before it was kept."""

    uid: str
    namespace: str
    pod: str
    container: str
    grants: tuple[Grant, ...]
    holds: tuple[Hold, ...]
    state: State
    standing: Standing | None = None

    @property
    def slots(self) -> tuple[str, ...]:
        """The slots that it was given."""
        return tuple(grant.slot for grant in self.grants)


@dataclass(frozen=True, slots=True)
class Fenced:
    """Fence and strikes of a card, times in seconds since 1970. boot: the node's boot during which it was written."""

    health: CardHealth
    boot: str = ""


class _Told(msgspec.Struct):
    grants: list[Grant]
    holds: list[Hold]
    standing: Standing | None = None


class _DamagedError(Exception):
    """The file is there, and is no journal."""


class Journal:
    """The rows, evictions and fences of one node. All are in memory as well: reading them never waits for the disk.

    damage: what was wrong with the file that was there, if it was put aside, and whether its fences could still be
    read; they are kept then. unread: fences that were not understood.
    """

    def __init__(self, path: Path) -> None:
        """Open or make the file. Raises UserError if that cannot be, or it is of another version."""
        self._path, self.damage = path, ""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._db, self._rows, self._evictions = _opened(path)
            except _DamagedError as exc:
                saved = _saved(path)
                self.damage = f"{path}: {exc}; it was put aside as {_put_aside(path).name}; {_told_of(saved)}"
                self._db, self._rows, self._evictions = _opened(path)
                _copy_fenced(self._db, saved or {})
            self.fenced, self.unread = _fenced(self._db)
        except (sqlite3.Error, OSError, _DamagedError) as exc:
            raise UserError(
                f"{path}: cannot be used as the journal: {_told(exc)}; give the agent a state-folder that it can "
                "write; running containers keep what they have"
            ) from exc

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @property
    def rows(self) -> Iterable[Row]:
        """All rows."""
        return self._rows.values()

    def get(self, uid: str, container: str) -> Row | None:
        """The row of a container."""
        return self._rows.get((uid, container))

    def put(self, row: Row) -> None:
        """Write a row, or write it anew; on disk when this returns. Raises ClusterError, and nothing has changed."""
        told = msgspec.json.encode(_Told(list(row.grants), list(row.holds), row.standing))
        self._write(
            "INSERT OR REPLACE INTO handed (uid, container, namespace, pod, state, told) VALUES (?, ?, ?, ?, ?, ?)",
            (row.uid, row.container, row.namespace, row.pod, row.state.value, told),
        )
        self._rows[row.uid, row.container] = row

    def drop(self, row: Row) -> None:
        """Remove a row, if it is there. Raises ClusterError, and nothing has changed."""
        self._write("DELETE FROM handed WHERE uid = ? AND container = ?", (row.uid, row.container))
        self._rows.pop((row.uid, row.container), None)

    @property
    def evictions(self) -> Mapping[str, Eviction]:
        """By the pod's UID."""
        return self._evictions

    def put_eviction(self, eviction: Eviction) -> None:
        """Write it, or write it anew; on disk when this returns. Raises ClusterError; in memory it is changed even so.

        A disk that is full must not keep the card's memory from coming back.
        """
        self._evictions[eviction.uid] = eviction
        told = msgspec.json.encode(eviction)
        self._write(SCHEMA_EVICTED, ())
        self._write("INSERT OR REPLACE INTO evicted (uid, told) VALUES (?, ?)", (eviction.uid, told))

    def drop_eviction(self, uid: str) -> None:
        """Forget it, if it is there. Raises ClusterError, and nothing has changed."""
        self._write("DELETE FROM evicted WHERE uid = ?", (uid,))
        self._evictions.pop(uid, None)

    def put_fenced(self, told: Fenced) -> None:
        """Write it, or write it anew. Raises ClusterError, and nothing has changed."""
        self._write(SCHEMA_FENCED, ())
        self._write(_PUT_FENCED, (told.health.uuid, msgspec.json.encode(told)))
        self.fenced[told.health.uuid] = told

    def drop_fenced(self, uuid: str) -> None:
        """Forget one that was written or read. Raises ClusterError, and nothing has changed."""
        self._write("DELETE FROM fenced WHERE uuid = ?", (uuid,))
        self.fenced.pop(uuid, None)

    def clearing(self) -> dict[str, str]:
        """Cards that another program asks to have cleared, and who says so; read from the file. Raises ClusterError."""
        try:
            return _clearing(self._db)
        except sqlite3.Error as exc:
            raise ClusterError(f"{self._path}: cannot be read: {_told(exc)}", retry=True) from exc

    def drop_clearing(self, uuid: str) -> None:
        """It was done. Raises ClusterError."""
        self._write("DELETE FROM clearing WHERE uuid = ?", (uuid,))

    def _write(self, statement: str, values: tuple[object, ...]) -> None:
        try:
            self._db.execute(statement, values)
        except sqlite3.Error as exc:
            raise ClusterError(f"{self._path}: cannot be written: {_told(exc)}", retry=True) from exc


def read_rows(path: Path) -> list[Row]:
    """The rows of an agent's journal, which may be running; nothing is written. Raises UserError."""
    try:
        db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        with contextlib.closing(db):
            rows = db.execute("SELECT uid, namespace, pod, container, state, told FROM handed").fetchall()
        return [_row(*row) for row in rows]
    except (sqlite3.Error, msgspec.DecodeError, ValueError) as exc:
        raise UserError(
            f"{path}: the agent's journal cannot be read ({exc}), so what is in use is not known; run this in the "
            "agent's container, or give the agent's state-folder with --state-folder"
        ) from exc


@contextlib.contextmanager
def fences(path: Path, *, ask: bool = False) -> Iterator[Fences]:
    """The fences in an agent's journal, which may be running. ask: wishes are written, too. Raises UserError."""
    mode = "rw" if ask else "ro"
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True)) as db:
            yield Fences(db)
    except sqlite3.Error as exc:
        raise UserError(
            f"{path}: the agent's journal cannot be used ({_told(exc)}); run this in the agent's container, or give "
            "the agent's state-folder with --state-folder"
        ) from exc


class Fences:
    """Of another program's journal: what is fenced, and the wish to clear it, which the agent fulfils."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def read(self) -> dict[str, Fenced]:
        """By the card's UUID."""
        return _fenced(self._db)[0]

    def ask_to_clear(self, uuid: str, by: str) -> None:
        """The agent does so when it looks next."""
        with self._db:
            self._db.execute(SCHEMA_CLEARING)
            self._db.execute("INSERT OR REPLACE INTO clearing (uuid, by) VALUES (?, ?)", (uuid, by))

    def take_back(self, uuid: str) -> None:
        """The wish, if the agent has not fulfilled it yet."""
        with self._db:
            self._db.execute("DELETE FROM clearing WHERE uuid = ?", (uuid,))

    def is_asked(self, uuid: str) -> bool:
        """Whether the agent has not done it yet."""
        return uuid in _clearing(self._db)


def _fenced(db: sqlite3.Connection) -> tuple[dict[str, Fenced], list[str]]:
    """By the card's UUID; and those that another version of the agent wrote in words unknown to this one.

    Of such a card it is known that it is fenced, and not when that ends: an operator says so.
    """
    found, unread = {}, []
    for uuid, told in _fenced_as_written(db).items():
        try:
            found[uuid] = msgspec.json.decode(told, type=Fenced)
        except (msgspec.DecodeError, TypeError) as exc:
            unread.append(f"{uuid}: {exc}")
            found[uuid] = Fenced(CardHealth(uuid, _UNREAD))
    return found, unread


def _fenced_as_written(db: sqlite3.Connection) -> dict[str, bytes]:
    return dict(_rows_of(db, "fenced", "SELECT uuid, told FROM fenced"))


_UNREAD = Fence(
    Code.XID_UNKNOWN, "a fence that another version of the agent wrote", Action.CORDON, 0.0, 0.0, held=True, keys=()
)


def _clearing(db: sqlite3.Connection) -> dict[str, str]:
    return dict(_rows_of(db, "clearing", "SELECT uuid, by FROM clearing"))


def _rows_of(db: sqlite3.Connection, table: str, query: str) -> list[tuple[Any, ...]]:
    """Of a table that may not have been made yet."""
    made = db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    return db.execute(query).fetchall() if made else []


_Rows: TypeAlias = dict[tuple[str, str], Row]
_Evictions: TypeAlias = dict[str, Eviction]


def _opened(path: Path) -> tuple[sqlite3.Connection, _Rows, _Evictions]:
    db = sqlite3.connect(path, timeout=LOCKED_WITHIN_S, isolation_level=None)
    try:
        return db, *_read(db, path)
    except (sqlite3.OperationalError, UserError):  # it cannot be read or written: that may pass
        db.close()
        raise
    except (sqlite3.DatabaseError, msgspec.DecodeError, ValueError) as exc:
        db.close()
        raise _DamagedError(f"is damaged: {exc}") from exc


def _read(db: sqlite3.Connection, path: Path) -> tuple[_Rows, _Evictions]:
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version not in {0, VERSION}:
        raise UserError(f"{path}: is a journal of version {version}, this agent reads {VERSION}; remove it")
    found = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise ValueError(found)
    db.execute(SCHEMA)
    db.execute(f"PRAGMA user_version={VERSION}")
    rows = db.execute("SELECT uid, namespace, pod, container, state, told FROM handed").fetchall()
    evicted = _rows_of(db, "evicted", "SELECT told FROM evicted")
    evictions = [msgspec.json.decode(told, type=Eviction) for (told,) in evicted]
    return {(row[0], row[3]): _row(*row) for row in rows}, {each.uid: each for each in evictions}


def _told(exc: Exception) -> str:
    """What went wrong, and who can be looked for."""
    code = getattr(exc, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return f"{exc}: another program has it open for writing; find it with fuser, and end it"
    return str(exc)


def _saved(path: Path) -> dict[str, bytes] | None:
    """The fences of a damaged file, as they are written in it; None if they cannot be read."""
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=LOCKED_WITHIN_S)) as db:
            return _fenced_as_written(db)
    except sqlite3.Error:
        return None


def _told_of(saved: Mapping[str, bytes] | None) -> str:
    if saved is None:
        return "which cards were fenced is not known any more: one that is still sick is fenced when its driver says so"
    return f"what it says of fences and strikes is kept ({len(saved)})" if saved else "no card was fenced in it"


def _copy_fenced(db: sqlite3.Connection, saved: Mapping[str, bytes]) -> None:
    if saved:
        db.execute(SCHEMA_FENCED)
        db.executemany(_PUT_FENCED, saved.items())


def _put_aside(path: Path) -> Path:
    for left in ("-wal", "-shm"):
        path.with_name(path.name + left).unlink(missing_ok=True)
    return path.replace(path.with_name(path.name + DAMAGED))


def _row(uid: str, namespace: str, pod: str, container: str, state: str, told: bytes) -> Row:
    read = msgspec.json.decode(told, type=_Told)
    return Row(uid, namespace, pod, container, tuple(read.grants), tuple(read.holds), State(state), read.standing)

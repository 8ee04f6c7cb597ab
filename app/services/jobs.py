"""Work that outlasts a request: a few at a time, with progress, until done, refused or cancelled.

Jobs live as long as the process. A server that is stopped in the middle loses the job and nothing else: an upload is
stored whole or not at all, and can be sent again.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from app.domain.errors import DomainError
from app.importers.base import UnreadableUpload, UploadCancelled
from app.storage.errors import Busy, NotFound, StorageError
from app.storage.records import new_id, utc_now

log = logging.getLogger("bytebound.jobs")

State = Literal["waiting", "reading", "storing", "done", "failed", "cancelled"]

MAX_UNFINISHED = 50
MAX_KEPT = 200
"""Finished jobs that can still be asked for; older ones are forgotten, the runs stay."""


@dataclass(slots=True)
class Job:
    """One upload being read. `done` of `total` bytes are read; `upload_id` and `created` are set when it is stored."""

    file_name: str
    size_bytes: int
    id: str = field(default_factory=new_id)
    created_at: datetime = field(default_factory=utc_now)
    state: State = "waiting"
    done: int = 0
    total: int = 0
    upload_id: str | None = None
    created: bool = False
    error: Exception | None = None
    _wanted: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_finished(self) -> bool:
        return self.state in ("done", "failed", "cancelled")

    @property
    def share(self) -> float | None:
        """How much is read, 0 to 1; None before reading begins."""
        return min(self.done / self.total, 1.0) if self.total else None

    def progress(self, done: int, total: int) -> None:
        """Note how far the reading is. Raises UploadCancelled where nobody wants it any more."""
        if self._wanted.is_set():
            raise UploadCancelled
        self.done, self.total = max(done, self.done), total

    def begin_storing(self) -> None:
        """From here on it is too late to cancel. Raises UploadCancelled where somebody did."""
        with self._lock:
            if self._wanted.is_set():
                raise UploadCancelled
            self.state = "storing"
            self.done = self.total

    def cancel(self) -> None:
        """Stop the work; nothing happens where it is being stored or finished already."""
        with self._lock:
            if self.state in ("waiting", "reading"):
                self._wanted.set()
                self.state = "cancelled"


class Jobs:
    """The jobs of one server; `at_once` of them run at the same time, the others wait in order."""

    def __init__(self, at_once: int = 1) -> None:
        self._at_once = at_once
        self._lock = threading.Lock()
        self._jobs: dict[str, Job] = {}
        self._waiting: deque[tuple[Job, Callable[[Job], None], Callable[[], None]]] = deque()
        self._threads: set[threading.Thread] = set()
        self._closed = False

    def submit(self, job: Job, work: Callable[[Job], None], after: Callable[[], None]) -> Job:
        """Do `work(job)` when its turn comes, and `after()` whatever came of it. Raises Busy where too many wait."""
        with self._lock:
            if self._closed or sum(not other.is_finished for other in self._jobs.values()) >= MAX_UNFINISHED:
                raise Busy(f"{MAX_UNFINISHED} uploads are being read already")
            self._jobs[job.id] = job
            finished = [id_ for id_, other in self._jobs.items() if other.is_finished]
            for id_ in finished[:-MAX_KEPT]:
                del self._jobs[id_]
            self._waiting.append((job, work, after))
            if len(self._threads) < self._at_once:
                thread = threading.Thread(target=self._run, daemon=True, name="bytebound-jobs")
                self._threads.add(thread)
                thread.start()
        return job

    def get(self, job_id: str) -> Job:
        """The job, or NotFound."""
        found = self._jobs.get(job_id)
        if found is None:
            raise NotFound("job", job_id[:80])
        return found

    def unfinished(self) -> tuple[Job, ...]:
        """Jobs that wait or run, oldest first."""
        with self._lock:
            return tuple(job for job in self._jobs.values() if not job.is_finished)

    def close(self, timeout_s: float = 5.0) -> None:
        """Cancel everything and wait a moment for it to end."""
        with self._lock:
            self._closed = True
            threads = tuple(self._threads)
        for job in self.unfinished():
            job.cancel()
        for thread in threads:
            thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._threads.discard(threading.current_thread())
                    return
                job, work, after = self._waiting.popleft()
            try:
                _do(job, work)
            finally:
                after()


def _do(job: Job, work: Callable[[Job], None]) -> None:
    try:
        job.progress(0, 0)
        job.state = "reading"
        work(job)
        job.state = "done"
    except UploadCancelled:
        job.state = "cancelled"
    except Exception as error:  # whoever sent the file asks for it later
        if not isinstance(error, (UnreadableUpload, DomainError, StorageError)):
            log.error("job %s failed", job.id, exc_info=error)
        job.error = error
        job.state = "failed"

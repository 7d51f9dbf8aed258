"""What a job queue promises, in a page: a list of jobs in plain Python, for the real one to be held to.

Time is in hours, and stands still but for `pass_hour`; what is due is due at 0 or before. Within an hour, ticks tell
what came first.
"""

from dataclasses import dataclass, field


@dataclass
class Job:
    """One job's row."""

    kind: str
    priority: int
    due: int
    tick: int
    max_attempts: int
    state: str = "waiting"  # waiting, leased, completed, dead, cancelled
    attempts: int = 0
    token: object = None
    lapsed: bool = False
    started: bool = False  # whether the start is marked
    workers: int = 0
    errors: int = 0
    ended_for: int = 0
    runs: int = 0  # starts that counted, since it was last let start afresh
    outcomes: int = 0  # the same of ends


@dataclass
class Model:
    """A queue. `held` are the jobs whose rows somebody's open transaction has locked."""

    keeps: bool
    lapsed_at_once: int
    jobs: dict[int, Job] = field(default_factory=dict)
    held: set[int] = field(default_factory=set)
    ended: dict[int, int] = field(default_factory=dict)  # of those that are gone: how often they ended
    clock: int = 0

    def tick(self):
        self.clock += 1
        return self.clock

    def add(self, ids, jobs):
        self.jobs |= dict(zip(ids, jobs, strict=True))

    # consuming

    def order(self, number):
        job = self.jobs[number]
        return -job.priority, job.due, job.tick, number

    def claimable(self, kinds):
        """What a claim may lease, in the order in which it must."""
        able = [
            number
            for number, job in self.jobs.items()
            if number not in self.held and self._is_due(job) and (kinds is None or job.kind in kinds)
        ]
        return sorted(able, key=self.order)

    def _is_due(self, job):
        if job.state == "waiting":
            return job.due <= 0
        return job.state == "leased" and job.lapsed and (job.attempts < job.max_attempts or not job.started)

    def claim(self, limit, kinds, *, mark):
        """The jobs that a claim must hand out. Short, it buries what is spent, a worker's if it is empty."""
        due = self.claimable(kinds)[:limit]
        lapsed = [number for number in due if self.jobs[number].state == "leased"]
        taken = [number for number in due if number not in lapsed[self.lapsed_at_once :]]
        for number in taken:
            job = self.jobs[number]
            job.attempts = min(job.attempts + 1, job.max_attempts)
            job.state, job.lapsed, job.started = "leased", False, mark
            job.workers += mark
            job.runs += mark
        if len(due) < limit and taken == due and (mark or not taken):
            self.bury()
        return taken

    def bury(self):
        for number, job in self.jobs.items():
            spent = job.state == "leased" and job.lapsed and job.started and job.attempts >= job.max_attempts
            if spent and number not in self.held:
                self._end(job, "dead")
                job.errors += 1

    def _end(self, job, state):
        job.state, job.token, job.lapsed, job.ended_for = state, None, False, 0
        job.outcomes += 1

    def is_held_by(self, number, token):
        job = self.jobs.get(number)
        return job is not None and job.state == "leased" and job.token is token

    def start(self, number, token):
        """Whether the handler may start."""
        if not self.is_held_by(number, token) or number in self.held:
            return False
        job = self.jobs[number]
        if not job.started:
            job.started = True
            job.workers += 1
            job.runs += 1
        return True

    def _note_start(self, job):
        if not job.started:
            job.started = True
            job.workers += 1
            job.runs += 1

    def complete(self, number, token):
        if not self.is_held_by(number, token):
            return 0
        job = self.jobs[number]
        self._note_start(job)
        self._end(job, "completed")
        if not self.keeps:
            self.ended[number] = self.jobs.pop(number).outcomes
        return 1

    def fail(self, number, token, *, delay=0, final=False, counts=True):
        """`pending`, `dead`, or None where the lease is lost."""
        if not self.is_held_by(number, token):
            return None
        job = self.jobs[number]
        if counts:
            self._note_start(job)
            job.errors = min(job.errors + 1, 20)
        else:
            job.attempts -= 1
            job.workers -= job.started
            job.runs -= job.started
            job.started = False
        if final or job.attempts >= job.max_attempts:
            self._end(job, "dead")
            return "dead"
        job.state, job.token, job.lapsed = "waiting", None, False
        job.due, job.tick = delay, self.tick()
        return "pending"

    def extend(self, number, token):
        if not self.is_held_by(number, token):
            return False
        self.jobs[number].lapsed = False
        return True

    # by id

    def cancel(self, number):
        job = self.jobs.get(number)
        if job is None or job.state not in ("waiting", "leased"):
            return 0
        self._end(job, "cancelled")
        return 1

    def retry(self, number):
        job = self.jobs.get(number)
        if job is None or job.state not in ("dead", "cancelled"):
            return 0
        job.state, job.attempts, job.started, job.runs, job.outcomes = "waiting", 0, False, 0, 0
        job.due, job.tick = 0, self.clock
        return 1

    def prune(self, hours):
        """How many ended so long ago, and are gone."""
        old = [
            number
            for number, job in self.jobs.items()
            if job.state in ("completed", "dead", "cancelled") and job.ended_for >= hours and number not in self.held
        ]
        for number in old:
            self.ended[number] = self.jobs.pop(number).outcomes
        return len(old)

    # time

    def pass_hour(self):
        for job in self.jobs.values():
            job.due -= 1
            job.ended_for += 1
